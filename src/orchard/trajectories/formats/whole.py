"""Our own form: everything that is known of a trajectory, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from orchard.trajectories.trajectory import Trajectory


def facts(found: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain data: its closing record, its conversations, its calls."""
    return {
        "rollout": found.rollout.model_dump(mode="json") if found.rollout else None,
        "session": found.session,
        "labels": next((one.labels for one in found.sessions if one.session == found.session), dict[str, str]()),
        "branches": [
            {"calls": [call.id for call in branch.calls], "messages": branch.messages} for branch in found.branches()
        ],
        "calls": [call.model_dump(mode="json") for call in found.calls],
    }


def write(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """Yield one line for each trajectory."""
    for found in trajectories:
        yield json.dumps(facts(found))
