"""What is to be run, under which bounds, and what is told of it meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchard.rollout.policies import Policy
from orchard.tasks.protocol import TaskSource
from orchard.trajectories import Failure, RolloutRecord

CPUS = os.cpu_count() or 1


@dataclass(frozen=True)
class Job:
    """One rollout: an attempt at a task by a policy under a harness."""

    source: TaskSource
    harness: str
    policy: Policy
    attempt: int
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the harness."""
    training: bool = False
    """Whether it is to be trained on: see ``Session.training`` of the gateway."""

    def rollout_id(self, run: str) -> str:
        """Return the id under which ``run`` records it: the same every time, which is what makes a resume possible."""
        facts = json.dumps([run, self.source.id, self.harness, self.policy.name, self.attempt])
        return f"ro-{hashlib.sha256(facts.encode()).hexdigest()[:24]}"

    @property
    def title(self) -> str:
        """One line for people."""
        return f"{self.source.id} · {self.harness} · {self.policy.name} #{self.attempt}"


@dataclass(frozen=True)
class Bounds:
    """How much happens at once, and how often trouble is met again."""

    prepare: int = 1
    """Tasks prepared at once."""
    run: int = max(4, 2 * CPUS)
    """Agents at work at once."""
    grade: int = max(2, CPUS)
    """Rollouts graded at once. At most ``run + grade`` rollouts hold a sandbox."""
    tries: int = 3
    """Most tries of one rollout; only infrastructure trouble is tried again."""
    give_up: int = 20
    """Rollouts in a row that fail for good by the machine, the gateway or the engine: then the run stops, so that a
    broken machine or server does not use up a benchmark."""
    pause: float = 1.0
    """Seconds before the second try; each further wait doubles, up to a minute."""


@dataclass(frozen=True)
class Event:
    """What just happened to a job."""

    kind: Literal["known", "prepared", "started", "failed", "graded", "closed"]
    """``known``: closed by an earlier process of the run. ``failed``: a try met trouble, another follows."""
    job: Job
    failure: Failure | None = None
    record: RolloutRecord | None = None


Observe = Callable[[Event], None]


def pause(bounds: Bounds, failures: int) -> float:
    """Return the seconds to wait after so many failures."""
    return min(bounds.pause * 2 ** (failures - 1), 60.0)
