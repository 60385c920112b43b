"""Confidence intervals, each with its source. No interval here is ever of zero width: n equal results prove little.

- Wilson (1927), "Probable inference": for counts of 0/1. Its centre is drawn to 1/2, so 4 of 4 gives [0.51, 1] at 95 %.
- Student t over per-task means: attempts of one task are correlated, so tasks are the unit (clustered standard errors;
  Miller 2024, "Adding error bars to evals", arXiv 2411.00640).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev


@dataclass(frozen=True)
class Interval:
    """A mean with its bounds at ``confidence``, by ``method``."""

    mean: float
    low: float
    high: float
    method: str
    confidence: float = 0.95


def wilson(mean: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion ``mean`` of ``n`` > 0 results."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    zz = z * z
    centre = (mean + zz / (2 * n)) / (1 + zz / n)
    half = z / (1 + zz / n) * math.sqrt(mean * (1 - mean) / n + zz / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def t_quantile(p: float, freedom: int) -> float:
    """Return the quantile ``p`` > 0.5 of Student's t with ``freedom`` > 0 degrees, to 1e-9, by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        high *= 2
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, freedom: int) -> float:
    """Return P(T <= t) by the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2 == 1
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(3 if odd else 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    if odd:
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    return 0.5 + math.sin(angle) * total / 2


def interval(scores_by_task: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval | None:
    """Return the mean over tasks of the mean over attempts, with its interval; None without any score.

    Args:
        scores_by_task: for each task the scores of its attempts in [0, 1]; tasks without one are left out.
        confidence: two-sided.
    """
    tasks = [scores for scores in scores_by_task if scores]
    if not tasks:
        return None
    means = [fmean(scores) for scores in tasks]
    mean, n = fmean(means), len(means)
    attempts = sum(len(scores) for scores in tasks)
    binary = all(score in (0.0, 1.0) for scores in tasks for score in scores)
    if n == 1 and binary:
        bounds, method = wilson(mean, attempts, confidence), f"Wilson, {_many(attempts, 'attempt')} at one task"
    elif binary and attempts == n:
        bounds, method = wilson(mean, n, confidence), f"Wilson, {_many(n, 'task')}"
    elif n > 1 and (spread := stdev(means)) > 0:
        half = t_quantile((1 + confidence) / 2, n - 1) * spread / math.sqrt(n)
        bounds, method = (max(0.0, mean - half), min(1.0, mean + half)), f"t over {n} task means"
    else:  # as if each task had one 0/1 result: the widest that scores in [0, 1] with this mean allow
        bounds, method = wilson(mean, n, confidence), f"Wilson as bound, {n} equal task means"
    return Interval(mean, *bounds, method, confidence)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
