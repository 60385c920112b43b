"""What ``eval``, ``demo`` and ``report`` share: running a plan with its progress, and showing the outcome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchard.cli import console

if TYPE_CHECKING:
    from orchard.evals.report import Report
    from orchard.evals.run import Plan


async def run_plan(plan: Plan, url: str | None = None) -> Report:
    """Run ``plan`` on the service at ``url`` or ORCHARD_URL, else on this machine; progress goes to stderr."""
    from rich.console import Console

    from orchard import Orchard
    from orchard.evals.run import evaluate, moved
    from orchard.rollout.progress import board

    try:
        for policy in plan.policies:
            if policy.check:
                await policy.check()
        for line in moved(plan):
            console.say(line)
        async with Orchard(url) as orchard:
            with board(Console(stderr=True), plan.total()) as observe:
                return await evaluate(plan, orchard, observe)
    finally:
        for policy in plan.policies:
            if policy.close:
                await policy.close()


_AGAIN = "; the same command with --retry-broken runs them again"


def show(report: Report, folder: Path, *, json: bool) -> None:
    """Print the report, and where its page is."""
    if json:
        console.out_json(report.to_json())
    else:
        from rich.console import Console

        from orchard.evals.table import render

        Console().print(render(report))
    console.say(f"page: {folder / 'report.html'}")


def trouble(report: Report) -> list[str]:
    """Return what keeps the report from being whole, a line each."""
    unjudged = sum(cell.reward is None for cell in report.cells)
    lines = [f"task {one.task} is refused: {one.reason}" for one in report.refused]
    return lines + ([f"{unjudged} of {len(report.cells)} rollouts could not be judged{_AGAIN}"] if unjudged else [])
