"""A full disk of this machine, told as such: which folder has no room left, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from orchard.core.errors import MachineUnfit, OrchardError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 64 << 10
"""Free bytes below which what a failed program said of its failure hardly matters."""


@contextmanager
def needs_room(folder: Path) -> Generator[None]:
    """Do what writes below ``folder``.

    Raises:
        MachineUnfit: the disk is full; a folder that the system names in its error is named instead.
    """
    try:
        yield
    except OrchardError:  # some are OSErrors too
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = Path(str(error.filename)).parent if error.filename else folder
        raise disk_full(where, os.strerror(error.errno)) from error


def disk_full(folder: Path, words: str) -> MachineUnfit:
    """Return the error that says that the disk of ``folder`` is full, in the words of whoever met it."""
    hint = "free space there (or inodes: df -i), or take another disk: ORCHARD_HOME, ORCHARD_CACHE, TMPDIR"
    return MachineUnfit(f"the disk of {folder} is full: {words}", hint=hint)


def met_full(words: str, folder: Path) -> bool:
    """Return True if a program that failed met a full disk: it wrote the system's own text for that, or one is full.

    Args:
        words: what it wrote, in the C locale.
        folder: where it wrote to; not every program says why it could not.
    """
    if any(os.strerror(number).lower() in words.lower() for number in _FULL):
        return True
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize < _LEAST_BYTES or (seen.f_files > 0 and seen.f_favail == 0)
