"""What a set of rollouts says: mean, pass@k, pass^k; what could not be judged is counted apart, never dropped, never 0.

pass@k = 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374) and pass^k = C(c, k) / C(n, k) (Yao et al. 2024,
arXiv 2406.12045) are unbiased for n judged attempts of which c succeed; a task with n < k has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean

from orchard.evals.intervals import Interval, interval
from orchard.trajectories.records import RolloutRecord

SUCCESS = 1.0
"""A reward from which an attempt counts as passed."""


@dataclass(frozen=True)
class AtK:
    """A metric at ``k``: its mean over ``tasks`` tasks; ``short`` tasks have fewer than k judged attempts."""

    k: int
    value: float | None
    tasks: int
    short: int


@dataclass(frozen=True)
class Metrics:
    """One (harness, policy) over a set of tasks."""

    tasks: int
    attempts: int
    """Rollouts there are."""
    judged: int
    """Those with a reward."""
    passed: int
    failures: Mapping[str, int]
    """Seam of infrastructure trouble -> rollouts that failed there for good."""
    missing: int
    """Rollouts that ended, and whose grader could not run."""
    unjudged_tasks: int
    """Tasks without any judged attempt: they are in no mean."""
    mean: Interval | None
    bounds: tuple[float, float] | None
    """The mean if every unjudged attempt had failed, and if every one had passed; None where nothing is unjudged."""
    pass_at: Sequence[AtK] = ()
    pass_hat: Sequence[AtK] = ()
    stops: Mapping[str, int] = field(default_factory=dict[str, int])


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of ``k`` attempts passes, given ``c`` of ``n`` >= ``k`` did."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the chance that all of ``k`` attempts pass, given ``c`` of ``n`` >= ``k`` did."""
    return comb(c, k) / comb(n, k)


def summarize(records: Iterable[RolloutRecord]) -> Metrics:
    """Return the metrics of ``records``, all of one harness and policy."""
    rows = list(records)
    by_task: dict[str, list[RolloutRecord]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    scores = [[row.reward for row in group if row.reward is not None] for group in by_task.values()]
    judged = sum(len(one) for one in scores)
    counts = [(len(one), sum(score >= SUCCESS for score in one)) for one in scores]
    ks = _ks(max((len(group) for group in by_task.values()), default=0))
    return Metrics(
        tasks=len(by_task), attempts=len(rows), judged=judged, passed=sum(c for _, c in counts),
        failures=_count(row.failure.seam for row in rows if row.failure and not _missing(row)),
        missing=sum(_missing(row) for row in rows), unjudged_tasks=sum(not one for one in scores),
        mean=interval(scores), bounds=_bounds(list(by_task.values())) if judged < len(rows) else None,
        pass_at=[_at(counts, k, pass_at_k) for k in ks], pass_hat=[_at(counts, k, pass_hat_k) for k in ks],
        stops=_count(row.stop for row in rows if row.stop),
    )  # fmt: skip


def _missing(row: RolloutRecord) -> bool:
    return row.reward is None and (row.failure is None or row.failure.seam == "grade")


def _bounds(groups: Sequence[Sequence[RolloutRecord]]) -> tuple[float, float]:
    def mean(unknown: float) -> float:
        return fmean(fmean(unknown if row.reward is None else row.reward for row in group) for group in groups)

    return mean(0.0), mean(1.0)


def _ks(most: int) -> list[int]:
    """1, 2, 4, 8 … below the number of attempts, and that number."""
    powers = [2**i for i in range(most.bit_length()) if 2**i < most]
    return [*powers, most] if most else []


def _at(counts: Sequence[tuple[int, int]], k: int, metric: Callable[[int, int, int], float]) -> AtK:
    values = [metric(n, c, k) for n, c in counts if n >= k]
    return AtK(k, fmean(values) if values else None, len(values), len(counts) - len(values))


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))
