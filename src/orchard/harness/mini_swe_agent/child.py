"""Runs inside mini-swe-agent's own environment: ``python child.py FD PARENT``; of Orchard nothing is imported here.

FD is one end of a socket pair that speaks JSON lines. The parent sends one job; the child answers ``{"ready": true}``
once its imports are done, runs the agent, and asks for each command: ``{"command": "..."}`` ->
``{"output", "returncode", "exception_info"}``, or ``{"trouble": "..."}``, which ends
the run without the model reading it.
"""
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def run(bridge: Bridge, job: dict[str, Any]) -> None:
    """Run mini-swe-agent's own agent and model classes with the templates of its ``mini.yaml``."""
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.exceptions import InterruptAgentFlow, LimitsExceeded
    from minisweagent.models.litellm_model import LitellmModel

    class Model(LitellmModel):
        """Ends the run at once on the endpoint's final codes, which litellm gives types that are tried again."""

        abort_exceptions = [*LitellmModel.abort_exceptions, InterruptAgentFlow]  # noqa: RUF012 - as in its base

        def _query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
            try:
                return super()._query(messages, **kwargs)
            except Exception as error:  # the seam to litellm: whatever it raises is looked at, and raised again
                status = next((job["final"][code] for code in codes(error) if code in job["final"]), None)
                if status is None:
                    raise
                extra = {"exit_status": status, "submission": ""}
                raise LimitsExceeded({"role": "exit", "content": str(error), "extra": extra}) from error

    config = yaml.safe_load((Path(builtin_config_dir) / "mini.yaml").read_text())
    model = Model(**{**config["model"], **job["model"]})
    templates = {key: config["agent"][key] for key in ("system_template", "instance_template")}
    agent = DefaultAgent(model, BridgeEnvironment(bridge, job["facts"]), **{**templates, **job["agent"]})
    bridge.send({"ready": True})
    agent.run(job["task"])


def codes(error: BaseException | None) -> Iterator[str]:
    """Yield the ``code`` of an error and of those it came from."""
    while error is not None:
        yield str(getattr(error, "code", None))
        error = error.__cause__ or error.__context__


def main() -> None:
    """Run one job."""
    # The agent must not outlive the process that records it: the kernel ends it, even after a kill -9 of the parent.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        raise SystemExit("the parent is gone")
    bridge = Bridge(int(sys.argv[1]))
    run(bridge, bridge.receive())


if __name__ == "__main__":
    main()
