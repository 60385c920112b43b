"""Files that can be made again, named by a hash of what went into them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchard.core.config import cache_dir
from orchard.core.scratch import publish

_ALTERNATIVES = 8  # stores of images on one machine that share the cache


def place(room: str, key: str) -> Path:
    """Return the path in the cache for ``key``; nothing is made."""
    return cache_dir() / room / hashlib.sha256(key.encode()).hexdigest()[:32]


def keep(folder: Path, name: str, data: bytes) -> None:
    """Add an entry to a folder of alternatives; the oldest beyond ``_ALTERNATIVES`` go."""
    publish(folder / name, data)
    for old in alternatives(folder)[_ALTERNATIVES:]:
        old.unlink(missing_ok=True)


def alternatives(folder: Path) -> list[Path]:
    """Return what ``keep`` added, newest first."""
    if not folder.is_dir():
        return []
    found = [(path.stat().st_mtime_ns, path) for path in folder.iterdir() if "." not in path.name]
    return [path for _, path in sorted(found, reverse=True)]
