"""Samples: what the trainer eats, token by token, merged along each branch so that a prefix is trained once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchard.trajectories.records import CallRecord
from orchard.trajectories.trajectory import Trajectory


@dataclass
class Sample:
    """One sequence. ``ids``, ``mask`` and ``logprobs`` have one entry for each token."""

    ids: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    """True for tokens that the model sampled and that no other sample trains."""
    logprobs: list[float] = field(default_factory=list[float])
    """As the engine sampled them; 0.0 for all others."""
    weight: float = 1.0
    """Advantage or weight of the whole sample."""
    calls: list[str] = field(default_factory=list[str])
    """The calls whose answers are in it."""

    def add(self, prompt: Sequence[int], call: CallRecord, *, train: bool) -> None:
        """Append what ``prompt`` has beyond ``ids``, then what the call sampled."""
        fresh, sampled = prompt[len(self.ids) :], call.sampled_ids or []
        self.ids += [*fresh, *sampled]
        self.mask += [False] * len(fresh) + [train] * len(sampled)
        self.logprobs += [0.0] * len(fresh) + list(call.logprobs or [0.0] * len(sampled))
        self.calls.append(call.id)


def to_samples(trajectory: Trajectory, *, weight: float = 1.0) -> list[Sample]:
    """Return the samples of the session that counts; calls without token ids give none.

    A call whose prompt does not begin with the ids so far (a context that was edited or rendered anew) begins another
    sample. A call on several branches is trained in the first.
    """
    found: list[Sample] = []
    trained: set[str] = set()
    for branch in trajectory.branches():
        current: Sample | None = None
        for call in branch.calls:
            prompt = trajectory.prompt_ids(call.id)
            if prompt is None or call.sampled_ids is None:
                current = None
                continue
            if current is None or prompt[: len(current.ids)] != current.ids:
                current = Sample(weight=weight)
                found.append(current)
            current.add(prompt, call, train=call.id not in trained)
            trained.add(call.id)
    return [sample for sample in found if any(sample.mask)]
