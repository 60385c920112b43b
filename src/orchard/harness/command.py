"""Any program as a harness, inside the sandbox: it finds the model at the end of a reverse tunnel by its variables.

Options: ``argv`` (list) or ``shell`` (text), and ``env``. The instruction is its stdin. It is done when it exits
with 0; the variables are those that most clients read.
"""

from __future__ import annotations

from typing import Any, Literal

from orchard.core.errors import InvalidArgument
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop, ToolEvent
from orchard.harness.shell import clip


class CommandHarness:
    """Runs one command in the sandbox and waits for its end."""

    name = "command"
    placement: Literal["inside"] = "inside"

    async def version(self) -> str:
        """Return the version of this driver: what it runs is in the options."""
        return "1"

    async def install(self) -> None:
        """Nothing to install: the program is in the image."""

    async def close(self) -> None:
        """Nothing is kept between runs."""

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the command; see ``Harness.run``."""
        command, extra = _options(request)
        result = await request.box.run(
            command, timeout=request.limits.seconds, cwd=request.workdir, env=variables(request) | extra, merge=True,
            stdin=request.instruction.encode(),
        )  # fmt: skip
        output = clip(result)
        event = ToolEvent(None, "command", {"command": command}, output, result.exit_code, round(result.duration, 4))
        if result.timed_out:
            return HarnessResult(Stop.TIME, f"{request.limits.seconds:g} s of wall time are used up", events=(event,))
        if result.ok:
            return HarnessResult(Stop.SUBMITTED, submission=output, events=(event,))
        end = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        return HarnessResult(Stop.FAILED, f"the command ended with {end}: {output[-500:]}", events=(event,))


def variables(request: HarnessRequest) -> dict[str, str]:
    """Return the variables under which agent programs look for their model endpoint, and the instruction."""
    return {
        "OPENAI_BASE_URL": f"{request.base_url}/v1", "OPENAI_API_BASE": f"{request.base_url}/v1",
        "OPENAI_API_KEY": request.api_key, "OPENAI_MODEL": request.model,
        "ANTHROPIC_BASE_URL": request.base_url, "ANTHROPIC_AUTH_TOKEN": request.api_key,
        "ORCHARD_MODEL": request.model, "ORCHARD_TURNS": str(request.limits.turns),
    }  # fmt: skip


def _options(request: HarnessRequest) -> tuple[Any, dict[str, str]]:
    config = dict(request.config)
    argv, shell, env = config.pop("argv", None), config.pop("shell", None), config.pop("env", {})
    if config or (argv is None) == (shell is None):
        raise InvalidArgument("harness `command` takes either `argv` or `shell`, and `env`", field="config")
    return (list(argv) if argv is not None else str(shell)), dict(env)
