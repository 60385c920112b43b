"""Building tool layers, once for each content."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import platform
import time
from dataclasses import replace
from pathlib import Path

from orchard.core.disk import needs_room
from orchard.core.errors import InvalidArgument
from orchard.core.scratch import locked, scratch
from orchard.harness.layers import linking, node, python
from orchard.harness.layers.layer import NODE, PYTHON, Layer
from orchard.harness.layers.parts import NODE_VERSION, SUITE, layers_dir
from orchard.sandbox.toolnames import parse_tool
from orchard.sandbox.tools import add, find

_RECIPE = 1
"""Raised whenever the same layer would be built otherwise."""
_log = logging.getLogger(__name__)


async def build(layer: Layer) -> str:
    """Return ``NAME@sha256:…`` of ``layer``, built on first use; any number of processes may ask at once.

    Raises:
        MachineUnfit: an index cannot be reached, or a program is missing; with its last words.
    """
    return await asyncio.to_thread(_build, layer)


def built(layer: Layer) -> bool:
    """Return whether ``build`` would find ``layer`` built."""
    here = all(path.is_file() for path in layer.programs.values())
    return here and _known(_note(layer)) is not None


async def python_here() -> Path:
    """Return Python 3.13 as this machine can start it, for what runs beside sandboxes; built on first use.

    Raises:
        MachineUnfit: as of ``build``.
    """
    return await asyncio.to_thread(_python_here)


def _python_here() -> Path:
    folder = find(parse_tool(_build(PYTHON)))
    assert folder is not None  # it was built this moment
    return python.outside_program(folder)


def _build(layer: Layer) -> str:
    note = _note(layer)
    if (known := _known(note)) is not None:
        return known
    with needs_room(layers_dir()), locked(layers_dir() / f".{layer.name}.lock"):
        if (known := _known(note)) is not None:
            return known
        began = time.monotonic()
        _log.info("building the tool layer %s, once", layer.name)
        with scratch(layers_dir() / ".drafts") as draft:
            folder = draft / "layer"
            folder.mkdir()
            _fill(layer, folder)
            made = add(layer.name, folder, move=True)
            note.parent.mkdir(exist_ok=True)
            (draft / "note").write_text(made)
            (draft / "note").rename(note)
        _log.info("built the tool layer %s in %.0f s", layer.name, time.monotonic() - began)
    return made


def _fill(layer: Layer, folder: Path) -> None:
    if layer == NODE:
        node.fill_node(folder)
    elif layer == PYTHON:
        python.fill_python(folder)
    elif layer.python:
        python.fill_packages(layer, folder, _python_here())
    elif layer.npm:
        node.fill_npm(layer, folder)
    elif layer.programs:
        linking.fill_programs(layer, folder)
    else:
        raise InvalidArgument(f"the layer {layer.name} holds nothing", field="layer")


def _note(layer: Layer) -> Path:
    return layers_dir() / "built" / f"{layer.name}-{_key(layer)}"


def _known(note: Path) -> str | None:
    """Return the layer that was built, while the store has it."""
    try:
        text = note.read_text()
    except FileNotFoundError:
        return None
    return text if find(parse_tool(text)) is not None else None


def _key(layer: Layer) -> str:
    files = [*layer.programs.values(), *([layer.constraints] if layer.constraints else [])]
    contents = [_digest(path, path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    said = replace(layer, programs=dict.fromkeys(layer.programs, Path()), constraints=None)
    facts = [_RECIPE, platform.machine(), NODE_VERSION, SUITE, repr(said), contents]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@functools.cache
def _digest(path: Path, changed: int, size: int) -> str:
    """Return the digest of a file, read again once it has changed: every sandbox asks for its layers by name."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
