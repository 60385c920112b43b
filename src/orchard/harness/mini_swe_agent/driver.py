"""Runs mini-swe-agent as a subprocess in a session of its own, and reads its trajectory file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from orchard.core.errors import InvalidArgument, OrchardError
from orchard.harness.endpoint import BUDGET_CODE, CONTEXT_CODE, EndpointFailed
from orchard.harness.mini_swe_agent import install
from orchard.harness.mini_swe_agent.bridge import Bridge
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.sandbox import Sandbox

START_SECONDS = 180.0
"""Most seconds until its imports are done; they are slow, and slower on a busy machine."""
STOPS = {
    "Submitted": Stop.SUBMITTED, "LimitsExceeded": Stop.TURNS, "TimeExceeded": Stop.TIME,
    "RepeatedFormatError": Stop.FORMAT, "ContextWindowExceededError": Stop.CONTEXT, "BudgetExceeded": Stop.BUDGET,
}  # fmt: skip
"""Its exit status -> why it ended; any other status is trouble."""
FINAL = {BUDGET_CODE: "BudgetExceeded", CONTEXT_CODE: "ContextWindowExceededError"}
"""Code of an endpoint's error that ends the run at once -> the exit status it ends with."""


class HarnessBroke(OrchardError):
    """The agent program ended in a way that says nothing about the model."""

    code = "harness_broke"


class MiniSweAgent:
    """mini-swe-agent with its own prompts, loop and model client.

    Options: ``sampling`` (parameters of each request, such as ``temperature``).
    """

    name = "mini-swe-agent"
    placement: Literal["beside"] = "beside"

    async def version(self) -> str:
        """Return the pinned version."""
        return install.VERSION

    async def install(self) -> None:
        """Install it into an environment of its own, once; see ``Harness.install``."""
        await install.install()

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the agent; see ``Harness.run``."""
        unknown = set(request.config) - {"sampling"}
        if unknown:
            raise InvalidArgument(f"mini-swe-agent has no option {', '.join(sorted(unknown))}", field="config")
        bridge, trajectory = Bridge(request), request.scratch / "trajectory.json"
        job = _job(request, trajectory, await _facts(request.box, request.workdir))
        process = await _spawn(bridge, request.scratch)
        serving = asyncio.ensure_future(bridge.serve(job))
        try:
            in_time = await _until_end(process, bridge, serving, request.limits.seconds)
        finally:
            _kill(process)
            serving.cancel()
            await asyncio.gather(serving, process.wait(), return_exceptions=True)
        if bridge.trouble:
            raise bridge.trouble
        return _result(request, bridge, trajectory, in_time)


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


async def _spawn(bridge: Bridge, scratch: Path) -> asyncio.subprocess.Process:
    child, home = Path(__file__).with_name("child.py"), scratch / "home"
    home.mkdir(exist_ok=True)
    with bridge.theirs, (scratch / "harness.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            str(install.python()), "-I", str(child), str(bridge.theirs.fileno()), str(os.getpid()),
            env=_environment(home), cwd=home, pass_fds=[bridge.theirs.fileno()], start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8",
        "MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(home), "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "5",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip


async def _until_end(
    process: asyncio.subprocess.Process, bridge: Bridge, serving: asyncio.Future[None], seconds: float
) -> bool:
    """Wait for the child's end; its clock starts when its imports are done. Return False if its time ran out."""
    ended = asyncio.ensure_future(process.wait())
    ready = asyncio.ensure_future(bridge.ready.wait())
    try:
        await asyncio.wait([ended, ready], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and not ready.done():
            raise HarnessBroke(f"mini-swe-agent was not ready after {START_SECONDS:.0f} s")
        done, _ = await asyncio.wait([ended, serving], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()
        return ended.done()
    finally:
        ended.cancel()
        ready.cancel()


def _kill(process: asyncio.subprocess.Process) -> None:
    """End the child and whatever it started; it leads a process group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _result(request: HarnessRequest, bridge: Bridge, trajectory: Path, in_time: bool) -> HarnessResult:
    info, turns = _read(trajectory)
    status = str(info.get("exit_status") or "")
    stop = STOPS.get(status) if in_time else Stop.TIME
    if stop is None:
        log = (request.scratch / "harness.log").read_text("utf-8", "replace")[-1500:]
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
