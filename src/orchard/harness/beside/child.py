"""Runs inside an agent library's own environment: ``python child.py FD PARENT RUNNER``; nothing of Orchard is imported.

RUNNER is a file that defines ``make_runner``: it imports the library and returns what runs one job.

Imports take seconds, so they are done once: this process serves, and each job runs in a fork of it. FD is a socket of
packets of JSON. The parent sends a job's files, with one end of a socket pair as ancillary data; the answers are
``{"ready": true}``, ``{"started": pid}`` in the order of the requests, ``{"exited": pid, "code": code}``.

On the socket pair, JSON lines: the parent sends one job, then the fork asks and the parent answers. What is asked is
between a runner and its driver. Where the parent has trouble with the sandbox it closes its end, and the fork ends.
"""

import ctypes
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1


class Bridge:
    """JSON lines to the parent and back."""

    def __init__(self, fd: int) -> None:
        self._file = socket.socket(fileno=fd).makefile("rwb")
        self._turn = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any]:
        """Read one line."""
        line = self._file.readline()
        if not line:  # trouble that the model must not read of: nothing here may catch it
            os._exit(1)
        return json.loads(line)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the parent's answer to one question; threads take turns."""
        with self._turn:
            self.send(question)
            return self.receive()


def serve(control: socket.socket, run: Callable[[Bridge], None]) -> None:
    """Fork for each job until the parent closes its end; then every fork ends with this process."""
    ended, wake = socket.socketpair()
    ended.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    tell(control, ready=True)
    while True:
        readable, _, _ = select.select([control, ended], [], [])
        if ended in readable:
            ended.recv(4096)
            reap(control)
        if control in readable:
            data, fds, _, _ = socket.recv_fds(control, 65536, 1)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                become(json.loads(data))
                control.close()
                work(run, fds[0])
            os.close(fds[0])
            tell(control, started=pid)


def become(facts: dict[str, str]) -> None:
    """Make the fork a process of its own: session, folder, log, and no life without the server."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server = os.getppid()
    os.setsid()
    die_with(server)
    random.seed()
    os.environ["HOME"] = facts["home"]  # noqa: TID251 - another program, without orchard.core
    os.chdir(facts["home"])
    log = os.open(facts["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd in (1, 2):
        os.dup2(log, fd)


def work(run: Callable[[Bridge], None], fd: int) -> NoReturn:
    """Run the job and end the fork, whatever comes of it; the log and the trajectory file tell."""
    code = 1
    try:
        run(Bridge(fd))
        code = 0
    except BaseException:  # noqa: BLE001 - the end of a fork: nothing may go back into the server's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reap(control: socket.socket) -> None:
    """Tell of every fork that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        tell(control, exited=pid, code=os.waitstatus_to_exitcode(status))


def tell(control: socket.socket, **message: Any) -> None:
    """Send one packet."""
    control.send(json.dumps(message).encode())


def die_with(parent: int) -> None:
    """Let the kernel end this process when ``parent`` ends, also by kill -9: an agent must not outlive its recorder."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    make_runner = runpy.run_path(sys.argv[3])["make_runner"]
    serve(socket.socket(fileno=int(sys.argv[1])), make_runner())
