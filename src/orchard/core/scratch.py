"""Work under way: locks, whole files, and folders that outlive their process by no more than the next such work."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Let one holder at a time, of any process, do what follows; others block. The lock dies with its holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


@contextmanager
def scratch(parent: Path) -> Generator[Path]:
    """Yield a folder of its own below ``parent``, gone afterwards; what killed processes left there goes first.

    Each is locked by whoever uses it, and a lock dies with its holder. Blocks while it removes.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in parent.iterdir():
        _sweep(left)
    folder, held = _own(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _own(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        held = _opened(folder)
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_EX)  # another may be about to sweep it: then it is gone
            if folder.is_dir():
                return folder, held
            os.close(held)


def _sweep(folder: Path) -> None:
    held = _opened(folder)
    if held is not None:
        remove_if_left(folder, held)


def remove_if_left(folder: Path, held: int) -> None:
    """Remove ``folder`` unless its owner lives, who has a lock on what ``held`` is open on; close ``held``."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(held)


def _opened(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None


def publish(path: Path, data: bytes) -> None:
    """Write a file so that a reader, and another writer of the same, sees the whole or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{id(data):x}")
    draft.write_bytes(data)
    draft.replace(path)
