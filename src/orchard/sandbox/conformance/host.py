"""What the machine itself shows of a sandbox. Only for backends whose machine is this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def _processes() -> Iterator[tuple[int, str]]:
    """Yield (pid, cgroups and mounts: either may name a sandbox) of every process that is not a zombie."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                yield int(folder.name), (folder / "cgroup").read_text() + (folder / "mountinfo").read_text()
        except OSError:
            continue


def main_processes(sandbox_id: str) -> list[int]:
    """Return the pid of the sandbox's main process: the first in its pid namespace."""
    found: list[int] = []
    for pid, told in _processes():
        if sandbox_id in told:
            status = Path(f"/proc/{pid}/status").read_text()
            inner = next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))
            if inner == "1":
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
                if not inside.is_dir() or not os.access(inside, os.R_OK) or any(inside.iterdir()):
                    found.append(f"file {inside}")
    return found
