"""Child processes of the host side, and processes known by pid and start time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HIGH = 256
"""Descriptors are first copied above this number, so that placing them from 3 on overwrites none of them."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
QUIET_ENV: Mapping[str, str] = {"PATH": _PATH, "LC_ALL": "C"}
"""Environment of helpers that need nothing of ours; their messages are in English."""

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
Gate = Callable[[int], None]
"""Called with the pid of a helper that waits in a fresh user namespace; writes its id maps."""

DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""Put before a helper that is to end when we are killed; what it left running by then, a sweep ends."""
_BEHIND_GATE = ("unshare", "--user", "sh", "-c", 'echo; read -r _ && exec "$@" </dev/null >&2', "sh")


@dataclass(frozen=True)
class Finished:
    """A helper that has ended: exit code (negative: signal, -9 also the time-out) and what it wrote."""

    code: int
    output: str


@dataclass(frozen=True)
class Target:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    started: int
    """Start time in clock ticks since boot."""

    def alive(self) -> bool:
        """Return True while it runs; a zombie does not."""
        return _start_time(self.pid) == self.started

    def kill(self, wait: float = 10.0) -> bool:
        """Kill it and return True once it and, being PID 1 of a namespace, everything in it has ended.

        Args:
            wait: seconds after which to return False.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):  # the number is a thread's of another process by now
                return True
            raise
        try:
            if not self.alive():  # the pid may be another's by now; the handle is bound before the check
                return _ended(handle, wait) if _start_time(self.pid) is None else True
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return _ended(handle, wait)
        except ProcessLookupError:
            return True
        finally:
            os.close(handle)


def _ended(handle: int, seconds: float) -> bool:
    """Wait for the process behind a pidfd; reap it where it is a child of ours (we are PID 1 or a subreaper)."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ready = bool(poll.poll(seconds * 1000))
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)
    return ready


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def target(pid: int) -> Target | None:
    """Return the running process ``pid``, or None where there is none."""
    started = _start_time(pid)
    return None if started is None else Target(pid, started)


def boot_id() -> str:
    """Return the id of this boot of the machine; pids and cgroups mean nothing across two of them."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def call(
    argv: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] = QUIET_ENV,
    fds: Sequence[int] = (),
    gate: Gate | None = None,
    log: Path | None = None,
) -> Finished:
    """Run a helper in a session of its own, to its end or until ``timeout`` seconds, when its group is killed.

    Args:
        argv: program and arguments.
        timeout: seconds.
        env: its whole environment.
        fds: what it finds as descriptors 3, 4, … in that order.
        gate: where given, the helper runs as root of a user namespace whose maps ``gate`` writes.
        log: file that its output goes to, for helpers that leave a process behind; else memory.

    Raises:
        FileNotFoundError: no such program.
    """
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("w+b") if log else os.fdopen(os.memfd_create("output"), "w+b"))
        places = {1: output.fileno(), 2: output.fileno()} | {3 + place: fd for place, fd in enumerate(fds)}
        if gate is None:
            code = _to_the_end(_spawn(argv, env, places), timeout)
        else:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            pid = _spawn([*_BEHIND_GATE, *argv], env, places | {0: theirs.fileno(), 1: theirs.fileno()})
            theirs.close()
            code = _to_the_end(pid, timeout, lambda: _pass_gate(pid, ours, gate))
        output.seek(0)
        return Finished(code, output.read().decode("utf-8", "replace"))


def _spawn(argv: Sequence[str], env: Mapping[str, str], places: Mapping[int, int]) -> int:
    high = {place: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for place, fd in places.items()}
    try:
        placed = [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in high.items()]
        null = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        return os.posix_spawnp(
            argv[0], list(argv), dict(env), file_actions=[null, *placed], setsid=True, setsigdef=_IGNORED_BY_PYTHON
        )
    finally:
        for fd in high.values():
            os.close(fd)


def _pass_gate(pid: int, channel: socket.socket, gate: Gate) -> None:
    if channel.recv(1):  # the helper stands in its namespace; else it ended before, and its output says why
        gate(pid)
        channel.sendall(b"\n")


def _to_the_end(pid: int, timeout: float, first: Callable[[], None] | None = None) -> int:
    handle = os.pidfd_open(pid)
    done = False
    try:
        if first is not None:
            first()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        done = bool(poll.poll(timeout * 1000))
    finally:
        if not done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        os.close(handle)
    return os.waitstatus_to_exitcode(status)
