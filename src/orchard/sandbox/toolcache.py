"""The folder of this machine's tool layers, kept within bounds: what is there, when it was last used, who uses it.

A layer is in use while a process of the machine runs from it or has it mounted, which the kernel tells: whoever made
the sandbox, and under whatever home. Nothing has to be given back when a sandbox dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchard.core.config import cache_dir, env
from orchard.core.scratch import scratch
from orchard.sandbox.toolnames import Tool
from orchard.sandbox.types import parse_size

LIMIT = "ORCHARD_TOOLS_LIMIT"
"""Variable with the most bytes of all layers together; what was asked for today stays, whatever it comes to."""
_LIMIT = "20GiB"
_REST = timedelta(days=1)
_MOUNTING = timedelta(minutes=1)
"""How long a layer counts as used once it was asked for: it may be on its way into a sandbox."""
_DIGEST = re.compile(rb"/([0-9a-f]{64})(?![0-9a-f])")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layer:
    """A tool layer of the store."""

    tool: Tool
    bytes: int
    """That it takes on the disk."""
    used_at: datetime
    """When it was last asked for."""
    in_use: bool
    """Whether a sandbox or another process has it now, or may be about to."""


def store() -> Path:
    """Return the folder of all layers."""
    return cache_dir() / "tools"


def place(tool: Tool) -> Path:
    """Return where a layer lies, if it is there."""
    return store() / tool.name / _hex(tool)


def used(tool: Tool) -> None:
    """Note that a layer was asked for."""
    note = _note(tool)
    with contextlib.suppress(OSError):  # a store that we may only read is its owner's to clear
        note.parent.mkdir(exist_ok=True)
        note.touch(0o600)


def layers() -> list[Layer]:
    """Return the layers of the store, the longest unused first. Reads every folder of it."""
    folders = [folder for name in _folders(store()) for folder in _folders(name)]
    tools = [Tool(folder.parent.name, f"sha256:{folder.name}") for folder in folders]
    busy = _busy()
    return sorted((_layer(tool, busy) for tool in tools), key=lambda one: one.used_at)


def clear(*, most: int | None = None, rest: timedelta = timedelta(), only: Collection[str] = ()) -> list[Layer]:
    """Remove layers that nobody uses, the longest unused first; return those that are gone.

    Args:
        most: stop once the store takes no more bytes than this.
        rest: keep what was asked for so recently.
        only: names to remove, with or without ``@sha256:…``; all by default.
    """
    found, removed = layers(), list[Layer]()
    total = sum(one.bytes for one in found)
    for one in found:
        if most is not None and total <= most:
            break
        wanted = not only or one.tool.name in only or str(one.tool) in only
        if wanted and not one.in_use and datetime.now(UTC) - one.used_at >= rest and remove(one):
            removed.append(one)
            total -= one.bytes
    return removed


def remove(layer: Layer) -> bool:
    """Remove a layer; False where it came into use since it was looked at, or is gone.

    It is taken out of its place before it is looked at once more: then nobody can take it into use any more.
    """
    tool = layer.tool
    with scratch(store() / ".drafts") as draft:
        taken = draft / _hex(tool)
        try:
            place(tool).rename(taken)
        except FileNotFoundError:  # another process was first
            return False
        if _used_at(tool) > layer.used_at or _hex(tool) in _busy():
            taken.rename(place(tool))
            return False
    _note(tool).unlink(missing_ok=True)
    return True


def trim() -> None:
    """Keep the store within its bound, without what was asked for today.

    Raises:
        InvalidArgument: ``ORCHARD_TOOLS_LIMIT`` is no size.
    """
    for gone in clear(most=parse_size(env(LIMIT) or _LIMIT, LIMIT), rest=_REST):
        _log.info("removed the tool layer %s, unused since %s", gone.tool, gone.used_at)


def _hex(tool: Tool) -> str:
    return tool.digest.removeprefix("sha256:")


def _note(tool: Tool) -> Path:
    return store() / ".used" / str(tool)


def _folders(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if path.is_dir() and not path.name.startswith(".")]


def _layer(tool: Tool, busy: set[str]) -> Layer:
    size = 0
    with contextlib.suppress(FileNotFoundError):  # another process removes it
        size = sum(path.lstat().st_blocks * 512 for path in place(tool).rglob("*"))
    at = _used_at(tool)
    return Layer(tool, size, at, _hex(tool) in busy or datetime.now(UTC) - at < _MOUNTING)


def _used_at(tool: Tool) -> datetime:
    note = _note(tool)
    facts = (note if note.exists() else place(tool).parent).stat()
    return datetime.fromtimestamp(facts.st_mtime, UTC)


def _busy() -> set[str]:
    """Return the digests in the paths of what is mounted anywhere, and of programs that run."""
    found = set[str]()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            told = b""
            with contextlib.suppress(OSError):  # it has ended, or it is another user's, who has a store of his own
                told += (process / "mountinfo").read_bytes()
                told += os.fsencode((process / "exe").readlink())
            found |= {digest.decode() for digest in _DIGEST.findall(told)}
    return found
