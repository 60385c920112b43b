"""Whether a task may be believed: the gold patch must score 1, and doing nothing must score 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        return Verdict(task, False, f"the gold patch scores {low.reward:g} under {low.harness}, not 1{_why(low)}")
    high = next((row for row in noop if row.reward), None)
    if high:
        return Verdict(task, False, f"doing nothing scores {high.reward:g} under {high.harness}, not 0")
    return Verdict(task, True, "")


def _why(row: RolloutRecord) -> str:
    """Return ``: `` and what the graders' evidence says against an attempt, or nothing."""
    causes = [_cause(one.evidence) for one in row.rewards if one.score is not None and one.score < SUCCESS]
    return "".join(f": {cause}" for cause in causes if cause)


def _cause(evidence: Mapping[str, Any]) -> str:
    """Return the first test that does not hold, or how the grader's command ended, with its last line."""
    tests = evidence.get("tests") or []
    failed = [each for each in tests if not each["ok"]]
    if failed:
        first, words = failed[0], _line(failed[0].get("message"), 0)
        named = f"{first['id']} {first['status']}{f' ({words})' if words else ''}"
        return f"{len(failed)} of {len(tests)} named tests do not hold, such as {named}"
    if "detail" in evidence:
        return _line(evidence["detail"], 0)
    if "log" not in evidence:
        return ""
    ended = f"signal {evidence['signal']}" if evidence.get("signal") else f"exit code {evidence.get('exit_code')}"
    words = _line(evidence["log"], -1)
    return ("its time is over" if evidence.get("timed_out") else ended) + (f": {words}" if words else "")


def _line(text: str | None, place: int) -> str:
    lines = (text or "").strip().splitlines() or [""]
    return lines[place].strip()[:300]
