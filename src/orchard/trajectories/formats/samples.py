"""Samples as JSON lines: ids, loss mask and log-probabilities of one sequence, with what its rollout came to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from orchard.trajectories.samples import to_samples
from orchard.trajectories.trajectory import Trajectory


def write(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """Yield one line for each sample; a trajectory without token ids has none."""
    for found in trajectories:
        origin = _origin(found)
        for sample in to_samples(found):
            yield json.dumps({**vars(sample), **origin})


def _origin(found: Trajectory) -> dict[str, Any]:
    rollout = found.rollout
    if rollout is None:
        return {"session": found.session}
    names = ("task", "attempt", "harness", "policy", "policy_version", "reward")
    return {"session": found.session, "rollout": rollout.id, **{name: getattr(rollout, name) for name in names}}
