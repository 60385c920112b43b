"""Whether a task may be believed: the gold patch must score 1, and doing nothing must score 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchard.evals.metrics import SUCCESS
from orchard.rollout.policies import GOLD, NOOP
from orchard.trajectories import RolloutRecord


@dataclass(frozen=True)
class Verdict:
    """What the gold and the empty run say of one task."""

    task: str
    ok: bool
    reason: str
    """Why it is refused; empty where it is not."""


def verdicts(records: Iterable[RolloutRecord]) -> dict[str, Verdict]:
    """Return a verdict for every task of ``records``; a task without both runs, judged, is refused."""
    runs: dict[str, dict[str, list[RolloutRecord]]] = {}
    for row in records:
        task = runs.setdefault(row.task, {GOLD: [], NOOP: []})
        if row.policy in task:
            task[row.policy].append(row)
    return {name: _verdict(name, task[GOLD], task[NOOP]) for name, task in runs.items()}


def _verdict(task: str, gold: Sequence[RolloutRecord], noop: Sequence[RolloutRecord]) -> Verdict:
    for policy, rows in ((GOLD, gold), (NOOP, noop)):
        if not rows:
            return Verdict(task, False, f"there is no {policy} run")
        for row in rows:
            if row.reward is None:
                words = row.failure.text if row.failure else "no reward"
                return Verdict(task, False, f"the {policy} run ({row.harness}) could not be judged: {words[:500]}")
    low = next((row for row in gold if row.reward is not None and row.reward < SUCCESS), None)
    if low:
        return Verdict(task, False, f"the gold patch scores {low.reward:g} under {low.harness}, not 1")
    high = next((row for row in noop if row.reward), None)
    if high:
        return Verdict(task, False, f"doing nothing scores {high.reward:g} under {high.harness}, not 0")
    return Verdict(task, True, "")
