"""Groups: rollouts of one task under one policy version, which is what advantages are taken over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchard.trajectories import RolloutRecord


@dataclass(frozen=True)
class Group:
    """Rollouts that differ in their attempt only."""

    task: str
    harness: str
    policy: str
    policy_version: str | None
    rollouts: Sequence[RolloutRecord]

    @property
    def rewards(self) -> list[float]:
        """The rewards there are; a rollout that failed or could not be graded has none."""
        return [row.reward for row in self.rollouts if row.reward is not None]


def groups(records: Iterable[RolloutRecord]) -> list[Group]:
    """Return the groups of ``records``, in order of first appearance, each by attempt."""
    found: dict[tuple[str, str, str, str | None], list[RolloutRecord]] = {}
    for row in records:
        found.setdefault((row.task, row.harness, row.policy, row.policy_version), []).append(row)
    return [Group(*key, sorted(rows, key=lambda row: row.attempt)) for key, rows in found.items()]
