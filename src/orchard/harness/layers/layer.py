"""What a tool layer of a harness holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchard.sandbox.toolnames import TOOLS


@dataclass(frozen=True)
class Layer:
    """One folder of programs, seen by sandboxes as /opt/orchard/tools/NAME; what is in ``bin`` ends their PATH.

    Scripts of ``npm`` are run by the layer ``NODE``, those of ``python`` by the layer ``PYTHON``, which a sandbox gets
    besides. Neither has a ``bin``: an image without Node or Python stays one for the agent's commands.
    """

    name: str
    npm: Sequence[str] = ()
    """Packages with their versions (``openclaw@2026.9.6``). Their programs are in ``bin``."""
    npm_scripts: bool = False
    """Let these packages run their install scripts."""
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name in ``bin`` -> pattern below ``node_modules`` of a program without Node, such as one that a launcher script
    of the package would start; then these alone are in ``bin``."""
    python: Sequence[str] = ()
    """Pinned requirements (``hermes-agent==0.19.0``). The programs of the first one are in ``bin``."""
    constraints: Path | None = None
    """Versions of what they need in turn."""
    programs: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Name in ``bin`` -> a program of this machine; it gets a loader and libraries of its own."""

    @property
    def folder(self) -> str:
        """Where a sandbox has it."""
        return f"{TOOLS}/{self.name}"


NODE = Layer("node")
"""Node.js 24: the program ``NODE_PROGRAM``."""
PYTHON = Layer("python")
"""Python 3.13: the program ``PYTHON_PROGRAM``."""
NODE_PROGRAM = f"{NODE.folder}/libexec/node"
PYTHON_PROGRAM = f"{PYTHON.folder}/libexec/python3.13"
