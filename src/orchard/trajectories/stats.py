"""What a store holds, harness by harness: how far calls merge into samples, why conversations fork, what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import zstandard

from orchard.trajectories.records import CallRecord
from orchard.trajectories.samples import to_samples
from orchard.trajectories.store import dump
from orchard.trajectories.trajectory import Trajectory

LEVEL = 3
"""Of compression, as segments have it."""


@dataclass
class Stats:
    """Sums over the trajectories of one harness."""

    harness: str
    rollouts: int = 0
    sessions: int = 0
    """Those without a rollout, which are never trained."""
    calls: int = 0
    """Answered ones, of the tries that count."""
    failed: int = 0
    """Calls that were cut or ended in an error."""
    conversations: int = 0
    """Paths from a root to a leaf, the agent's and those beside the work."""
    samples: int = 0
    """What the trainer would get; 0 where no token ids were recorded."""
    forks: Counter[str] = field(default_factory=Counter[str])
    """Calls that no other call's conversation leads to, beside the first, by cause."""
    purposes: Counter[str] = field(default_factory=Counter[str])
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sampled_tokens: int = 0
    """Ids that were recorded as sampled."""
    trained_tokens: int = 0
    """Those of them that a sample trains: each once."""
    sample_tokens: int = 0
    """The length of all samples together."""
    stored_bytes: int = 0
    """The calls compressed one by one, as a lone session writes them."""
    naive_bytes: int = 0
    """The same, were each call stored with its whole prompt, its ids and its tools."""

    def add(self, found: Trajectory) -> None:
        """Take in one trajectory."""
        self.rollouts += found.rollout is not None
        self.sessions += found.rollout is None
        answered = [call for call in found.calls if call.status == "ok"]
        self.calls += len(answered)
        self.failed += len(found.calls) - len(answered)
        self.purposes.update(call.purpose for call in answered)
        self.forks.update(forks(found))
        self.conversations += len(found.branches())
        usage = found.usage
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        samples = to_samples(found)
        self.samples += len(samples)
        self.sampled_tokens += sum(len(call.sampled_ids or ()) for call in answered)
        self.trained_tokens += sum(sum(sample.mask) for sample in samples)
        self.sample_tokens += sum(len(sample.ids) for sample in samples)
        self.stored_bytes += sum(map(_size, found.calls))
        self.naive_bytes += sum(_size(naive(found, call)) for call in found.calls)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**vars(self), "forks": dict(self.forks), "purposes": dict(self.purposes)}


def stats(trajectories: Iterable[Trajectory]) -> list[Stats]:
    """Return the sums for each harness, by name; for a session without a rollout its label ``harness`` names it."""
    found: dict[str, Stats] = {}
    for trajectory in trajectories:
        name = harness_of(trajectory)
        found.setdefault(name, Stats(name)).add(trajectory)
    return sorted(found.values(), key=lambda one: one.harness)


def harness_of(found: Trajectory) -> str:
    """Return the harness of a trajectory; ``-`` where nothing says it."""
    if found.rollout is not None:
        return found.rollout.harness
    return next((one.labels["harness"] for one in found.sessions if "harness" in one.labels), "-")


def forks(found: Trajectory) -> Counter[str]:
    """Count the answered calls, beside the first, that continue no call's conversation whole, by cause.

    The cause is what the call is for, and for the agent's own how the tree placed it: ``forked`` from a part of an
    earlier conversation, or a new ``root``.
    """
    answered = [call for call in found.calls if call.status == "ok"]
    return Counter(_cause(call) for call in answered[1:] if call.matched != "extends")


def _cause(call: CallRecord) -> str:
    return call.matched if call.purpose == "agent" else call.purpose


def naive(found: Trajectory, call: CallRecord) -> CallRecord:
    """Return a call as one that stands alone: with its whole prompt, ids and tools."""
    whole: dict[str, Any] = {
        "parent": None, "kept_messages": 0, "edits": {}, "messages": found.prompt(call.id),
        "tools": found.tools(call.id) or None, "kept_ids": 0, "prompt_ids": found.prompt_ids(call.id),
    }  # fmt: skip
    return call.model_copy(update=whole)


def _size(call: CallRecord) -> int:
    return len(zstandard.ZstdCompressor(level=LEVEL).compress(dump(call)))
