"""Files that can be made again, named by a hash of what went into them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from orchard.core.config import cache_dir


def place(room: str, key: str) -> Path:
    """Return the path in the cache for ``key``; nothing is made."""
    return cache_dir() / room / hashlib.sha256(key.encode()).hexdigest()[:32]


def publish(path: Path, data: bytes) -> None:
    """Write a file so that a reader, and another writer of the same, sees the whole or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.{id(data):x}")
    scratch.write_bytes(data)
    scratch.replace(path)
