"""The cluster's processes: started apart from whoever starts them, known by pid and start time, ended for certain."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubernetes.cluster.place import LOGS, PIDS, Node
from tests.support.waiting import LONGEST_REST, rest

from orchard.core.config import base_env
from orchard.core.errors import MachineUnfit
from orchard.sandbox.local.process import Target, target

CGROUPS = Path("/sys/fs/cgroup")
_APART = '"$@" </dev/null >>"$0" 2>&1 & echo $!'
"""The shell ends at once, so what it started is nobody's child and outlives us."""


def run(*argv: str | Path, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a command printed.

    Raises:
        MachineUnfit: it failed; with its words.
    """
    done = subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise MachineUnfit(f"`{' '.join(map(str, argv))[:300]}` ended with {done.returncode}: {words}")
    return done.stdout


_GARBAGE = "400"  # percent of what lives, before it is collected: a small cluster has more memory than processors
PATIENCE = 180.0  # seconds that what must come may take: it only ends a wait for what never will
WITHIN = f"--timeout={PATIENCE:.0f}s"  # the same of kubectl and helm
_NOT_HEARD = ("TLS handshake timeout",)
"""What kubectl says where the API server has no time for it, and did nothing. One that does not run refuses."""
_PERHAPS_DONE = ("unable to return a response in the time allotted", "etcdserver: request timed out")
_REPEATABLE = {"get", "apply", "wait"}
PERIOD = 100_000  # microseconds in which a share of a processor is reckoned


def wait_until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Return once ``holds``, looked at twenty times a second, or less where a look costs.

    Raises:
        TimeoutError: not within ``seconds``; names ``what``.
    """
    end = time.monotonic() + seconds
    while True:
        start = time.monotonic()
        if holds():
            return
        now = time.monotonic()
        if now > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(rest(now - start, 0.05))


def unified() -> bool:
    """Return whether this machine has cgroups of version 2 and no others."""
    return (CGROUPS / "cgroup.controllers").exists()


def kubectl(programs: Path, kubeconfig: Path, *words: str | Path, stdin: str | None = None) -> str:
    """Return what kubectl says; while the API server has no time for it, ask again.

    Raises:
        MachineUnfit: it failed; with its words.
    """
    end = time.monotonic() + PATIENCE
    busy = _NOT_HEARD + (_PERHAPS_DONE if _REPEATABLE & set(map(str, words)) else ())
    while True:
        try:
            return run(programs / "kubectl", f"--kubeconfig={kubeconfig}", *words, stdin=stdin)
        except MachineUnfit as failed:
            if time.monotonic() > end or not any(each in str(failed) for each in busy):
                raise
        time.sleep(LONGEST_REST)


@dataclass(frozen=True)
class Part:
    """One process of the cluster."""

    name: str
    argv: Sequence[str | Path]
    node: Node | None = None
    """Whose network it lives in; None is the machine's own."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    share: float = 0.0
    """Most of a processor that it and its children may take; 0: all there is. Needs a node."""

    @property
    def log(self) -> Path:
        """What it wrote."""
        return LOGS / f"{self.name}.log"

    def running(self) -> Target | None:
        """Return its process, or None where it does not run."""
        try:
            pid, started = map(int, (PIDS / self.name).read_text().split())
        except FileNotFoundError:
            return None
        found = Target(pid, started)
        return found if found.alive() else None

    def start(self, programs: Path) -> None:
        """Start it unless it runs; ``programs`` is the folder of the cluster's programs."""
        if self.running():
            return
        # nsenter and not `ip netns exec`: that one hides the cgroup file systems from the kubelet
        enter = ["nsenter", f"--net=/run/netns/{self.node.namespace}"] if self.node else []
        path = f"{programs}:{base_env()['PATH']}"
        env = {"PATH": path, "HOME": "/nonexistent", "GOGC": _GARBAGE, **self.env}
        pid = int(run("sh", "-c", _APART, self.log, "setsid", *enter, *self.argv, env=env))
        process = target(pid)
        if process is None:
            raise MachineUnfit(f"{self.name} ended at once: {self.log.read_text()[-1000:]}")
        (PIDS / self.name).write_text(f"{pid} {process.started}")
        if self.node and self.share:
            self._bound(pid, f"{self.node.cgroup}/{self.name}")

    def _bound(self, pid: int, group: str) -> None:
        """Put it into a cgroup of its own, which goes with the node's.

        Raises:
            MachineUnfit: the kernel did not take it; the part has ended.
        """
        folder = CGROUPS / ("" if unified() else "cpu") / group
        quota = round(self.share * PERIOD)
        try:
            folder.mkdir(exist_ok=True)
            if unified():
                for above in (CGROUPS, folder.parent):
                    (above / "cgroup.subtree_control").write_text("+cpu")
                (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
            else:
                (folder / "cpu.cfs_period_us").write_text(f"{PERIOD}")
                (folder / "cpu.cfs_quota_us").write_text(f"{quota}")
            (folder / "cgroup.procs").write_text(f"{pid}")
        except OSError as error:
            self.stop(grace=0)
            raise MachineUnfit(f"{self.name} cannot be held to its share of a processor: {error}") from error

    def stop(self, *, grace: float = 10.0) -> None:
        """End it by SIGTERM, and after ``grace`` seconds by SIGKILL. Nothing where it does not run."""
        process = self.running()
        if process and grace:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
            end = time.monotonic() + grace
            while process.alive() and time.monotonic() < end:
                time.sleep(0.02)
        if process and not process.kill():
            raise MachineUnfit(f"{self.name}, pid {process.pid}, does not end even by SIGKILL")
        (PIDS / self.name).unlink(missing_ok=True)

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` to it where it runs: SIGSTOP freezes it, SIGCONT lets it go on."""
        process = self.running()
        if process:
            os.kill(process.pid, number)
