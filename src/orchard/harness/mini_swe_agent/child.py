"""Runs inside mini-swe-agent's own environment: ``python child.py FD PARENT``; of Orchard nothing is imported here.

Imports take seconds, so they are done once: this process serves, and each job runs in a fork of it. FD is a socket of
packets of JSON. The parent sends a job's files, with one end of a socket pair as ancillary data; the answers are
``{"ready": true}``, ``{"started": pid}`` in the order of the requests, ``{"exited": pid, "code": code}``.

On the socket pair, JSON lines: the parent sends one job; the fork asks for each command, ``{"command": "..."}`` ->
``{"output", "returncode", "exception_info"}``, or ``{"trouble": "..."}``, which ends the run without the model reading
it.
"""
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import ctypes
import json
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class SandboxTrouble(Exception):
    """The sandbox failed, not the command."""


class Bridge:
    """JSON lines to the parent and back."""

    def __init__(self, fd: int) -> None:
        self._file = socket.socket(fileno=fd).makefile("rwb")

    def send(self, message: dict[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any]:
        """Read one line."""
        line = self._file.readline()
        if not line:
            raise SandboxTrouble("the other end of the bridge is closed")
        return json.loads(line)


class BridgeEnvironment:
    """mini-swe-agent's environment protocol over the bridge: commands run in one sandbox and nowhere else."""

    def __init__(self, bridge: Bridge, facts: dict[str, Any]) -> None:
        self._bridge, self.config = bridge, facts

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run one command in the sandbox."""
        self._bridge.send({"command": action.get("command", "")})
        answer = self._bridge.receive()
        if "trouble" in answer:
            raise SandboxTrouble(answer["trouble"])
        first, _, rest = answer["output"].lstrip().partition("\n")
        if first.strip() == MARKER and answer["returncode"] == 0:
            from minisweagent.exceptions import Submitted

            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return answer

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the prompt may tell of the machine."""
        return self.config | kwargs

    def serialize(self) -> dict[str, Any]:
        """Return this environment's part of the trajectory file."""
        return {"info": {"config": {"environment": self.config, "environment_type": "orchard"}}}


def make_runner() -> Callable[[Bridge], None]:
    """Import mini-swe-agent; return what runs one job by its own agent and model classes, with its ``mini.yaml``."""
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.exceptions import InterruptAgentFlow, LimitsExceeded
    from minisweagent.models.litellm_model import LitellmModel

    class Model(LitellmModel):
        """Ends the run at once on the endpoint's final codes, which litellm gives types that are tried again."""

        abort_exceptions = [*LitellmModel.abort_exceptions, InterruptAgentFlow]  # noqa: RUF012 - as in its base
        final: dict[str, str] = {}  # noqa: RUF012 - set once, before the only run of this process

        def _query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
            try:
                return super()._query(messages, **kwargs)
            except Exception as error:  # the seam to litellm: whatever it raises is looked at, and raised again
                status = next((self.final[code] for code in codes(error) if code in self.final), None)
                if status is None:
                    raise
                extra = {"exit_status": status, "submission": ""}
                raise LimitsExceeded({"role": "exit", "content": str(error), "extra": extra}) from error

    config = yaml.safe_load((Path(builtin_config_dir) / "mini.yaml").read_text())
    templates = {key: config["agent"][key] for key in ("system_template", "instance_template")}

    def run(bridge: Bridge) -> None:
        job = bridge.receive()
        Model.final = job["final"]
        model = Model(**{**config["model"], **job["model"]})
        DefaultAgent(model, BridgeEnvironment(bridge, job["facts"]), **{**templates, **job["agent"]}).run(job["task"])

    return run


def codes(error: BaseException | None) -> Iterator[str]:
    """Yield the ``code`` of an error and of those it came from."""
    while error is not None:
        yield str(getattr(error, "code", None))
        error = error.__cause__ or error.__context__


def serve(control: socket.socket) -> None:
    """Fork for each job until the parent closes its end; then every fork ends with this process."""
    run = make_runner()
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
    serve(socket.socket(fileno=int(sys.argv[1])))
