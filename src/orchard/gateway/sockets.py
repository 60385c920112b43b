"""The folder of the sessions' Unix sockets: private, paths short enough for the kernel, swept when its owner dies."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from orchard.core.scratch import remove_if_left

_PREFIX = "orchard-gw-"
_LOCK = "lock"


class SocketFolder:
    """A folder that only this user may enter, held under a lock while this process lives."""

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        if len(str(base)) > 60:  # a socket's path holds 107 bytes
            base = Path("/tmp")
        _sweep(base)
        self.path, self._lock = _own(base)
        self._count = 0

    def new(self) -> Path:
        """Return a path for one more socket."""
        self._count += 1
        return self.path / f"{self._count}.sock"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _own(base: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        held = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)  # another may be about to sweep it: then it is gone
        if folder.is_dir():
            return folder, held
        os.close(held)


def _sweep(base: Path) -> None:
    """Remove the folders of this user whose owners were killed."""
    for folder in base.glob(_PREFIX + "*"):
        try:
            fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # of another user, or being made right now
        remove_if_left(folder, fd)
