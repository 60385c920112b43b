"""Filters: which rollouts, as a query on the index, so that nothing else is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Filter:
    """All that is given must hold: ``store.rollouts(*Filter(run="nightly", min_reward=1.0).where())``."""

    run: str | None = None
    task: str | None = None
    harness: str | None = None
    policy: str | None = None
    policy_version: str | None = None
    min_reward: float | None = None
    """A missing reward never fulfils a bound."""
    max_reward: float | None = None
    stops: tuple[str, ...] = ()
    """Any of these ways to end."""
    min_turns: int | None = None
    max_turns: int | None = None
    max_seconds: float | None = None
    failed: bool | None = None
    """``False`` leaves out infrastructure failures, ``True`` all others."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition and its parameters, as ``Store.rollouts`` takes them."""
        clauses: list[tuple[str, list[Any]]] = [
            (f"{name} = ?", [value])
            for name in ("run", "task", "harness", "policy", "policy_version")
            if (value := getattr(self, name)) is not None
        ]
        bounds = {
            "reward >= ?": self.min_reward, "reward <= ?": self.max_reward, "turns >= ?": self.min_turns,
            "turns <= ?": self.max_turns, "seconds <= ?": self.max_seconds,
        }  # fmt: skip
        clauses += [(clause, [bound]) for clause, bound in bounds.items() if bound is not None]
        clauses += [("label(labels, ?) = ?", [name, value]) for name, value in self.labels.items()]
        if self.stops:
            clauses.append((f"stop IN ({', '.join('?' * len(self.stops))})", list(self.stops)))
        if self.failed is not None:
            clauses.append((f"failure IS {'NOT ' if self.failed else ''}NULL", []))
        text = " AND ".join(clause for clause, _ in clauses)
        return text, [param for _, params in clauses for param in params]
