"""Runs the checks against a backend, several at once, and reports each."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchard.sandbox.conformance.context import Context, NotApplicable, NotHeld
from orchard.sandbox.conformance.suite import CHECKS, Check, patience

Verdict = Literal["passed", "failed", "excepted", "not applicable"]

LATER: Sequence[tuple[int, str, str]] = (
    (14, "a paused sandbox does not burn a command's time-out", "no backend can pause a sandbox yet"),
    (43, "a recycled warm sandbox holds nothing of the one before", "there are no warm pools yet"),
    (51, "an allow-list allows only the named host and port", "networks are none or open; there are no lists yet"),
    (53, "changing a policy works on a running sandbox", "networks are none or open; there are no lists yet"),
)
"""Lines whose feature no backend has yet: (line, claim, reason). Reported as excepted, never left out."""

AT_ONCE = 4  # checks that run together


@dataclass(frozen=True)
class Outcome:
    """What became of one check."""

    line: int
    claim: str
    verdict: Verdict
    detail: str = ""
    """What was seen, or why it was not checked."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """All outcomes, by line."""

    backend: str
    outcomes: Sequence[Outcome]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not any(outcome.verdict == "failed" for outcome in self.outcomes)

    def count(self, verdict: Verdict) -> int:
        """Return how many checks ended so."""
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable facts."""
        return {"backend": self.backend, "ok": self.ok, "checks": [asdict(outcome) for outcome in self.outcomes]}


async def run(
    context: Context,
    *,
    lines: Iterable[int] | None = None,
    progress: Callable[[Outcome], None] | None = None,
    at_once: int = AT_ONCE,
) -> Report:
    """Run the checks of ``lines`` (all by default) and return the report.

    Args:
        context: the backend under test.
        lines: numbers of behaviours.
        progress: called with each outcome as it is known.
        at_once: checks that may run together.

    Raises:
        OrchardError: the backend cannot even make a sandbox of the default image.
    """
    wanted = set(range(1, 1000)) if lines is None else set(lines)
    chosen = [check for check in CHECKS if check.line in wanted]
    excepted = (await context.orchard.capabilities()).exceptions
    tools = await _tools(context, {tool for check in chosen for tool in check.tools})
    outcomes = [Outcome(line, claim, "excepted", reason) for line, claim, reason in LATER if line in wanted]
    gate = asyncio.Semaphore(at_once)

    async def one(check: Check) -> None:
        async with gate:
            outcome = _left_out(check, excepted, tools, context) or await run_check(check, context)
        outcomes.append(outcome)
        if progress:
            progress(outcome)

    async with asyncio.TaskGroup() as group:
        for check in chosen:
            if not check.alone:
                group.create_task(one(check))
    for check in chosen:
        if check.alone:
            await one(check)
    return Report(context.orchard.backend.name, sorted(outcomes, key=lambda outcome: (outcome.line, outcome.claim)))


def _left_out(check: Check, excepted: Mapping[str, str], tools: set[str], context: Context) -> Outcome | None:
    names = (check.feature or "", *check.also, f"line {check.line}")
    reason = next((excepted[name] for name in names if name in excepted), None)
    if reason is not None:
        return Outcome(check.line, check.claim, "excepted", reason)
    if check.feature == "service" and context.service_url is None:
        return Outcome(check.line, check.claim, "not applicable", "the backend is no service")
    if missing := [tool for tool in check.tools if tool not in tools]:
        return Outcome(check.line, check.claim, "not applicable", f"the image has no {', '.join(missing)}")
    return None


async def run_check(check: Check, context: Context) -> Outcome:
    """Run one check within its time; every way in which it ends is an outcome."""
    start = time.monotonic()
    verdict: Verdict = "passed"
    detail = ""
    try:
        patience.set(context.patience)
        async with asyncio.timeout(check.seconds * context.patience):
            await check.run(context)
    except NotApplicable as reason:
        verdict, detail = "not applicable", str(reason)
    except NotHeld as seen:
        verdict, detail = "failed", str(seen)
    except Exception as error:  # noqa: BLE001 - the seam to the backend under test: what it raises is its failure
        where = traceback.extract_tb(error.__traceback__)
        inside = next((frame.lineno for frame in reversed(where) if "conformance" in frame.filename), None)
        verdict, detail = "failed", f"{type(error).__name__}: {error} (at line {inside} of the check's file)"
    return Outcome(check.line, check.claim, verdict, detail[:2000], time.monotonic() - start)


async def _tools(context: Context, names: set[str]) -> set[str]:
    """Return those of ``names`` that the default image has."""
    async with context.box() as box:
        script = "; ".join(f"command -v {name} >/dev/null && echo {name}" for name in sorted(names)) or "true"
        return set((await box.run(script, timeout=30)).text.split())
