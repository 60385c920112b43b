"""What the machine itself shows of a sandbox. Only for backends whose machine is this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def _processes(*more: str) -> Iterator[tuple[int, str]]:
    """Yield (pid, cgroups and mounts: either may name a sandbox; then ``more``) of every process but zombies."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                files = ("cgroup", "mountinfo", *more)
                yield int(folder.name), "".join((folder / name).read_text() for name in files)
        except OSError:
            continue


def main_processes(sandbox_id: str) -> list[int]:
    """Return the pid of the sandbox's main process: the first in its pid namespace."""
    found: list[int] = []
    for pid, told in _processes("status"):  # read at once: a process may end at any moment
        if sandbox_id in told:
            inner = [line.split()[-1] for line in told.splitlines() if line.startswith("NSpid:")]
            if inner == ["1"]:
                found.append(pid)
    return found


def _mounts(sandbox_id: str) -> Iterator[str]:
    seen: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            namespace = str((folder / "ns/mnt").readlink())
            if namespace in seen:
                continue
            seen.add(namespace)
            for line in (folder / "mountinfo").read_text().splitlines():
                if sandbox_id in line:
                    yield f"mount {line.split()[4]} in {namespace}"
        except OSError:
            continue


def _cgroups(sandbox_id: str) -> Iterator[str]:
    for path, folders, _ in os.walk("/sys/fs/cgroup"):
        for name in folders:
            if sandbox_id in name:
                yield f"cgroup {path}/{name}"


def traces(sandbox_id: str, home: Path) -> list[str]:
    """Return all that is left of a sandbox, but for the record of its end (one JSON file)."""
    found = [f"process {pid}" for pid, told in _processes() if sandbox_id in told]
    found += _mounts(sandbox_id)
    found += _cgroups(sandbox_id)
    for path, folders, files in os.walk(home):
        for name in (*folders, *files):
            if sandbox_id in f"{path}/{name}"[len(str(home)) :] and not name.endswith(".json"):
                inside = Path(path) / name
                with suppress(FileNotFoundError):  # of a living sandbox
                    if not inside.is_dir() or not os.access(inside, os.R_OK) or any(inside.iterdir()):
                        found.append(f"file {inside}")
    return found
