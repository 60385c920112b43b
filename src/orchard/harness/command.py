"""Any program as a harness, inside the sandbox: it finds the model at the end of a reverse tunnel by its variables.

Options: ``argv`` (list) or ``shell`` (text), and ``env``. The instruction is its stdin. It is done when it exits
with 0; the variables are those that most clients read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from orchard.core.errors import InvalidArgument
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop, ToolEvent
from orchard.harness.shell import clip


class CommandHarness:
    """Runs one command in the sandbox and waits for its end."""

    name = "command"
    placement: Literal["inside"] = "inside"
    needs: Sequence[str] = ()

    def check(self, config: Mapping[str, Any]) -> None:
        """See ``Harness.check``."""
        _options(config)

    async def version(self) -> str:
        """Return the version of this driver: what it runs is in the options."""
        return "1"

    async def install(self) -> None:
        """Nothing to install: the program is in the image."""

    async def installed(self) -> bool:
        """See ``Harness.installed``."""
        return True

    async def tools(self) -> Sequence[str]:
        """No layers: the program is in the image."""
        return ()

    async def close(self) -> None:
        """Nothing is kept between runs."""

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the command; see ``Harness.run``."""
        command, extra = _options(request.config)
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


def _options(config: Mapping[str, Any]) -> tuple[list[str] | str, dict[str, str]]:
    """Return what to run and its further variables.

    Raises:
        InvalidArgument: ``config`` is of another form.
    """
    if set(config) - {"argv", "shell", "env"} or ("argv" in config) == ("shell" in config):
        raise InvalidArgument("harness `command` takes either `argv` or `shell`, and `env`", field="config")
    command, extra = config.get("argv", config.get("shell")), config.get("env", {})
    if not (_texts(command) if "argv" in config else isinstance(command, str) and command):
        raise InvalidArgument("harness `command`: `argv` is a list of texts, `shell` is a text", field="config")
    if not isinstance(extra, Mapping) or not _texts([*extra, *extra.values(), ""]):
        raise InvalidArgument("harness `command`: `env` maps names to texts", field="config")
    return command, dict(extra)


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value)
