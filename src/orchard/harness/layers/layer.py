"""What a tool layer of a harness holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Layer:
    """One folder of programs, seen by sandboxes as /opt/orchard/tools/NAME; what is in ``bin`` ends their PATH.

    Layers with ``npm`` run on the layer ``NODE``, those with ``python`` on the layer ``PYTHON``: a sandbox gets both.
    """

    name: str
    npm: Sequence[str] = ()
    """Packages with their versions (``openclaw@2026.9.6``), installed into the layer's own folder."""
    npm_scripts: bool = False
    """Let these packages run their install scripts."""
    python: Sequence[str] = ()
    """Pinned requirements (``hermes-agent==0.19.0``), installed into site-packages of the layer's own."""
    programs: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Programs of this machine by their name in ``bin``, with the libraries and the loader that they name."""


NODE = Layer("node")
"""Node.js 24 and npm."""
PYTHON = Layer("python")
"""Python 3.13."""
