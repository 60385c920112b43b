"""What a sandbox, or a program, may not leave behind on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def traces(home: Path, sandbox_id: str) -> list[str]:
    """Name everything that is left of a sandbox on this machine but the record of its end."""
    found = [str(path) for path in home.rglob(f"*{sandbox_id}*") if path.parent.name not in ("ended", "storage")]
    for folder, _, _ in os.walk("/sys/fs/cgroup"):
        if sandbox_id in folder:
            found.append(folder)
    return found + _processes(sandbox_id, "cgroup", "mountinfo")


def started_with(mark: str) -> list[str]:
    """Name the processes that have ``mark`` in the environment they were started with."""
    return _processes(mark, "environ")


def _processes(mark: str, *files: str) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = b"".join((process / file).read_bytes() for file in files)
            if mark.encode() in told:
                found.append(f"{process}: {(process / 'cmdline').read_bytes()!r}")
        except OSError:  # it has ended, or is a zombie or another user's
            continue
    return found
