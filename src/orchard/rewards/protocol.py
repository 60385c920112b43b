"""The seam of the rewards room: an attempt goes in, a score with evidence comes out, or *missing*.

Adding a grader is a file that fulfils ``Grader`` and a line in ``orchard.rewards.registry``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchard.sandbox import Orchard, Sandbox
from orchard.tasks.model import GraderSpec, Task


@dataclass(frozen=True)
class Attempt:
    """What one rollout left behind."""

    patch: bytes
    """Difference of the work tree to the image's, made outside the sandbox; empty where nothing changed."""
    box: Sandbox | None = None
    """The agent's sandbox, still alive, for graders that look at its state."""
    submission: str | None = None
    gold: bool = False
    """The patch is the task's own: where even it leaves no report, task or machine are at fault, not a model."""


@dataclass(frozen=True)
class Reward:
    """What one grader says. ``score`` is None when it could not run: *missing*, never 0."""

    grader: str
    score: float | None
    missing: str | None = None
    """Why there is no score."""
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Verdict per test, the tail of the log, fall-backs used …; JSON-serialisable."""


class Grader(Protocol):
    """Judges one attempt."""

    async def grade(self, task: Task, spec: GraderSpec, attempt: Attempt, orchard: Orchard) -> Reward:
        """Return the reward. Infrastructure trouble that leaves the verdict open is *missing*, not an exception."""
        ...
