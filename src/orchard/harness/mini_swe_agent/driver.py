"""Runs mini-swe-agent in a process and session of its own for each run, and reads its trajectory file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from orchard.harness.beside.server import LOG, ForkServer, HarnessBroke
from orchard.harness.endpoint import BUDGET_CODE, CONTEXT_CODE, EndpointFailed
from orchard.harness.mini_swe_agent.bridge import Commands
from orchard.harness.mini_swe_agent.environment import MINI_SWE_AGENT
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.harness.registry import check_options
from orchard.sandbox import Sandbox

VARIABLES = {
    "MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "5", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip
STOPS = {
    "Submitted": Stop.SUBMITTED, "LimitsExceeded": Stop.TURNS, "TimeExceeded": Stop.TIME,
    "RepeatedFormatError": Stop.FORMAT, "ContextWindowExceededError": Stop.CONTEXT, "BudgetExceeded": Stop.BUDGET,
}  # fmt: skip
"""Its exit status -> why it ended; any other status is trouble."""
FINAL = {BUDGET_CODE: "BudgetExceeded", CONTEXT_CODE: "ContextWindowExceededError"}
"""Code of an endpoint's error that ends the run at once -> the exit status it ends with."""


class MiniSweAgent:
    """mini-swe-agent with its own prompts, loop and model client.

    Options: ``sampling`` (parameters of each request, such as ``temperature``).
    """

    name = "mini-swe-agent"
    placement: Literal["beside"] = "beside"
    needs: Sequence[str] = ()

    def __init__(self) -> None:
        self._server = ForkServer(MINI_SWE_AGENT, Path(__file__).with_name("runner.py"), VARIABLES)

    def check(self, config: Mapping[str, Any]) -> None:
        """See ``Harness.check``."""
        check_options(self.name, config, {"sampling"})

    async def version(self) -> str:
        """Return the pinned version."""
        return MINI_SWE_AGENT.version

    async def install(self) -> None:
        """Install it into an environment of its own, once; see ``Harness.install``."""
        await MINI_SWE_AGENT.install()

    async def installed(self) -> bool:
        """See ``Harness.installed``."""
        return MINI_SWE_AGENT.installed

    async def tools(self) -> Sequence[str]:
        """Nothing of it is inside but its commands."""
        return ()

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the agent; see ``Harness.run``."""
        self.check(request.config)
        trajectory = request.scratch / "trajectory.json"
        job = _job(request, trajectory, await _facts(request.box, request.workdir))
        bridge = Commands(request)
        in_time = await self._server.run(bridge, job, request.scratch, request.limits.seconds)
        return _result(request, bridge, trajectory, in_time)

    async def close(self) -> None:
        """End the process that runs are forked from."""
        await self._server.close()


def _job(request: HarnessRequest, trajectory: Path, facts: dict[str, str]) -> dict[str, Any]:
    endpoint = {"api_base": f"{request.base_url}/v1", "api_key": request.api_key, "drop_params": True}
    return {
        "task": request.instruction,
        "facts": facts,
        "final": FINAL,
        "model": {
            "model_name": f"openai/{request.model}", "cost_tracking": "ignore_errors",
            "model_kwargs": {**request.config.get("sampling", {}), **endpoint},
        },
        "agent": {
            "step_limit": request.limits.turns, "cost_limit": 0,
            "wall_time_limit_seconds": max(1, int(request.limits.seconds)), "output_path": str(trajectory),
        },
    }  # fmt: skip


async def _facts(box: Sandbox, workdir: str) -> dict[str, str]:
    """Return what its prompt tells of the machine: that of the sandbox, never of this one."""
    seen = await box.run("uname -s; uname -r; uname -v; uname -m", timeout=30)
    lines = seen.text.splitlines()
    names = ("system", "release", "version", "machine")
    facts = dict(zip(names, lines, strict=True)) if len(lines) == len(names) else {"system": "Linux"}
    return {name: facts.get(name, "") for name in names} | {"cwd": workdir}


def _result(request: HarnessRequest, bridge: Commands, trajectory: Path, in_time: bool) -> HarnessResult:
    info, turns = _read(trajectory)
    status = str(info.get("exit_status") or "")
    stop = STOPS.get(status) if in_time else Stop.TIME
    if stop is None:
        log = (request.scratch / LOG).read_text("utf-8", "replace")[-1500:]
        words = f"mini-swe-agent ended with status {status or 'none'!r}: {log}"
        raise EndpointFailed(words) if status in _ENDPOINT else HarnessBroke(words)
    return HarnessResult(
        stop, f"exit status {status}" if in_time else f"{request.limits.seconds:g} s of wall time are used up",
        info.get("submission") if stop is Stop.SUBMITTED else None, turns, tuple(bridge.events), trajectory,
    )  # fmt: skip


_ENDPOINT = {
    "APIConnectionError", "APIError", "AuthenticationError", "BadRequestError", "InternalServerError", "NotFoundError",
    "RateLimitError", "ServiceUnavailableError", "Timeout",
}  # fmt: skip


def _read(trajectory: Path) -> tuple[dict[str, Any], int]:
    """Return the file's ``info`` and the number of model calls; a file cut by a kill counts as none."""
    try:
        info = json.loads(trajectory.read_text())["info"]
    except (OSError, ValueError, KeyError):
        return {}, 0
    return info, int(info.get("model_stats", {}).get("api_calls", 0))
