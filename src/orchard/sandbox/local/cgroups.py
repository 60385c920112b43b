"""Control groups: ``commands`` of each sandbox, and its daemon beside them.

Limits are set on ``commands``, so that they hit what runs in the sandbox and never its daemon. It lies at
``orchard/ID`` below a *base*: on v1 our own place in each hierarchy, on v2 the topmost place that we may write to
(the root of the tree as root, the delegated subtree as an ordinary user). The daemon is in ``orchard/ID`` itself on v1,
since a memory group costs the kernel 1 KiB for every seven sandboxes that ever lived at once; v2 wants a leaf for it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import signal
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchard.sandbox.types import SandboxSpec

ROOM = "orchard"
_LIMITED = ("memory", "pids", "cpu", "freezer")
"""v1 hierarchies in which commands have a leaf of their own."""
_PERIOD_US = 100_000


@dataclass(frozen=True)
class Cgroups:
    """What this machine gives us of control groups."""

    version: int
    """1 or 2."""
    bases: Mapping[str, Path]
    """Controller (v1; ``unified`` on v2) -> folder below which ``orchard`` lies."""
    controllers: frozenset[str]

    def runtime_path(self, sandbox_id: str) -> str:
        """Return ``cgroupsPath`` of the runtime's spec: relative to our place on v1, absolute on v2."""
        if self.version == 1:
            return f"{ROOM}/{sandbox_id}"
        return f"/{self.bases['unified'].relative_to(_v2_mount()) / ROOM / sandbox_id / 'daemon'}"

    def folders(self, sandbox_id: str) -> list[Path]:
        """Return every folder that the sandbox may have, one for each hierarchy."""
        return [base / ROOM / sandbox_id for base in dict.fromkeys(self.bases.values())]

    def strays(self, age: float) -> list[str]:
        """Name the sandboxes of any home whose groups are empty, and older than ``age`` seconds: nobody's any more.

        A living one has its daemon in them; one that is being made is young.
        """
        base = next(iter(self.bases.values())) / ROOM
        limit = time.time() - age
        found: list[str] = []
        for entry in _scan(base):
            with contextlib.suppress(OSError):  # another one removed it this moment
                if entry.stat().st_ctime < limit and self._empty(entry.name):
                    found.append(entry.name)
        return found

    def _empty(self, sandbox_id: str) -> bool:
        folders = self.folders(sandbox_id)
        daemon = folders[0] / ("daemon" if self.version == 2 else "") / "cgroup.procs"
        if daemon.exists() and daemon.read_text().strip():  # of a living one this look is enough
            return False
        procs = (path for folder in folders for path in folder.rglob("cgroup.procs"))
        return not any(path.read_text().strip() for path in procs)

    def make_commands(self, spec: SandboxSpec, sandbox_id: str) -> None:
        """Make ``commands`` with the limits of ``spec``.

        Raises:
            OSError: the kernel refused; the caller removes what was made.
        """
        if self.version == 1:
            for name in _LIMITED:
                if name in self.bases:
                    (self.bases[name] / ROOM / sandbox_id / "commands").mkdir(parents=True, exist_ok=True)
            self._limit_v1(spec, sandbox_id)
        else:
            self._make_v2(spec, sandbox_id)

    @contextlib.contextmanager
    def open_commands(self, sandbox_id: str) -> Generator[dict[str, int]]:
        """Open ``commands`` for handing in: hierarchy -> descriptor."""
        names = [name for name in _LIMITED if name in self.bases] if self.version == 1 else ["unified"]
        with contextlib.ExitStack() as stack:
            opened: dict[str, int] = {}
            for name in names:
                folder = self.bases[name] / ROOM / sandbox_id / "commands"
                opened[name] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, opened[name])
            yield opened

    def pick_cpus(self, cpu: float | None) -> str | None:
        """Return as many CPUs as ``cpu`` takes, chosen at random, or None where all of them may be used.

        So ``nproc`` in a 1-CPU sandbox says 1. The quota, not this set, is the limit.
        """
        usable = sorted(os.sched_getaffinity(0))
        if cpu is None or "cpuset" not in self.controllers or math.ceil(cpu) >= len(usable):
            return None
        return ",".join(str(number) for number in sorted(random.sample(usable, math.ceil(cpu))))

    def set_cpus_v2(self, sandbox_id: str, cpus: str) -> None:
        """Bind ``commands`` to CPUs on v2; on v1 the runtime binds the whole sandbox."""
        if self.version == 2:
            (self.bases["unified"] / ROOM / sandbox_id / "commands" / "cpuset.cpus").write_text(cpus)

    def _limit_v1(self, spec: SandboxSpec, sandbox_id: str) -> None:
        def leaf(name: str) -> Path:
            return self.bases[name] / ROOM / sandbox_id / "commands"

        if "pids" in self.bases:
            (leaf("pids") / "pids.max").write_text(str(spec.pids))
        if spec.memory is not None:
            (leaf("memory") / "memory.limit_in_bytes").write_text(str(spec.memory))
            swap = leaf("memory") / "memory.memsw.limit_in_bytes"
            if swap.exists():
                swap.write_text(str(spec.memory))
        if spec.cpu is not None:
            (leaf("cpu") / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (leaf("cpu") / "cpu.cfs_quota_us").write_text(str(_quota(spec.cpu)))

    def _make_v2(self, spec: SandboxSpec, sandbox_id: str) -> None:
        base = self.bases["unified"]
        leaf = base / ROOM / sandbox_id / "commands"
        enable = " ".join(f"+{name}" for name in sorted(self.controllers))
        for folder in (base / ROOM, base / ROOM / sandbox_id, leaf):
            (folder.parent / "cgroup.subtree_control").write_text(enable)
            folder.mkdir(exist_ok=True)
        (leaf / "cgroup.subtree_control").write_text(enable)
        if "pids" in self.controllers:
            (leaf / "pids.max").write_text(str(spec.pids))
        if spec.memory is not None:
            (leaf / "memory.max").write_text(str(spec.memory))
            swap = leaf / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        if spec.cpu is not None:
            (leaf / "cpu.max").write_text(f"{_quota(spec.cpu)} {_PERIOD_US}")


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in os.scandir(folder) if entry.is_dir()]
    except FileNotFoundError:
        return []


def _quota(cpu: float) -> int:
    return max(1000, round(cpu * _PERIOD_US))  # the kernel refuses less than 1 ms


def oom_killed(folders: list[Path]) -> bool:
    """Return True if the kernel killed the daemon of these folders for memory."""
    for folder in folders:
        for name in ("daemon/memory.events", "memory.oom_control"):  # v1 counts in each group what was killed in it
            with contextlib.suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    if line.startswith("oom_kill ") and int(line.split()[1]) > 0:
                        return True
    return False


def kill_all(folders: list[Path]) -> None:
    """Kill whatever is left in these folders; for a launch that failed half-way."""
    for folder in folders:
        for procs in folder.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                for pid in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)


def remove(folders: list[Path], seconds: float = 5.0) -> None:
    """Remove these folders and all below, waiting for the kernel to let go of them.

    Raises:
        OSError: one is still in use after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    for folder in folders:
        while not _remove_once(folder):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"the cgroup {folder} is still in use")
            time.sleep(0.002)  # noqa: TID251 — the kernel offers no event for this


def _remove_once(folder: Path) -> bool:
    try:
        below = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    if not all([_remove_once(inner) for inner in below]):
        return False
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def find_cgroups() -> Cgroups | None:
    """Return the control groups that we may use, or None (an ordinary user without a delegated subtree)."""
    own = _own_places()
    v1 = _v1_bases(own)
    if "memory" in v1:
        usable = all(os.access(base, os.W_OK) for base in v1.values())
        return Cgroups(1, v1, frozenset(v1)) if usable else None
    mount = _v2_mount()
    if not (mount / "cgroup.controllers").exists() or "" not in own:
        return None
    return _v2(mount, mount / own[""].lstrip("/"))


def _own_places() -> dict[str, str]:
    places: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        places |= dict.fromkeys(controllers.split(","), place)
    return places


def _v1_bases(own: Mapping[str, str]) -> dict[str, Path]:
    bases: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, point = before.split()[3:5]
        names = [""] if kind == "cgroup2" else [name for name in options.split(",") if name in own]
        for name in names:
            if name in own:
                inner = os.path.relpath(own[name], root)
                bases[name or "unified"] = Path(point) if inner.startswith("..") else Path(point) / inner
    return bases


def _v2_mount() -> Path:
    return Path("/sys/fs/cgroup")


def _v2(mount: Path, own: Path) -> Cgroups | None:
    base = own if own.exists() else mount
    while base != mount and os.access(base.parent, os.W_OK) and os.access(base.parent / "cgroup.procs", os.W_OK):
        base = base.parent
    if not os.access(base, os.W_OK):
        return None
    offered = set((base / "cgroup.controllers").read_text().split())
    wanted = frozenset(offered & {"memory", "pids", "cpu", "cpuset"})
    try:
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))
    except OSError:  # processes live in it, and it is not the real root
        return None
    return Cgroups(2, {"unified": base}, wanted)
