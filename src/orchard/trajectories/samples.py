"""Samples: what the trainer eats, token by token, merged along each branch so that a prefix is trained once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from orchard.core.errors import InvalidArgument
from orchard.trajectories.records import WORK, CallRecord, PolicySpan
from orchard.trajectories.trajectory import Trajectory


@dataclass
class Sample:
    """One sequence. ``ids``, ``mask`` and ``logprobs`` have one entry for each token."""

    ids: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    """True for tokens that the model sampled freely and that no other sample trains."""
    logprobs: list[float] = field(default_factory=list[float])
    """As the engine sampled them; 0.0 for all others."""
    weight: float = 1.0
    """Advantage or weight of the whole sample."""
    calls: list[str] = field(default_factory=list[str])
    """The calls whose answers are in it."""
    spans: list[PolicySpan] = field(default_factory=list[PolicySpan])
    """Which version of the weights sampled which of its tokens, where that is known."""

    def add(self, prompt: Sequence[int], call: CallRecord, *, train: bool) -> None:
        """Append what ``prompt`` has beyond ``ids``, then what the call sampled."""
        if call.logprobs is not None and len(call.logprobs) != len(call.sampled_ids or []):
            raise InvalidArgument(
                f"call {call.id} has {len(call.logprobs)} log-probabilities for {len(call.sampled_ids or [])} sampled "
                "ids: it makes no sample; leave it out", field="logprobs",
            )  # fmt: skip
        fresh, sampled = prompt[len(self.ids) :], call.sampled_ids or []
        start = len(self.ids) + len(fresh)
        free = [train] * len(sampled)
        for span in call.masked:
            free[span.start : span.end] = [False] * len(free[span.start : span.end])
        self.ids += [*fresh, *sampled]
        self.mask += [False] * len(fresh) + free
        self.logprobs += [0.0] * len(fresh) + list(call.logprobs or [0.0] * len(sampled))
        self.calls.append(call.id)
        self.spans += [
            PolicySpan(version=span.version, start=start + span.start, end=start + span.end) for span in _spans(call)
        ]


def _spans(call: CallRecord) -> Sequence[PolicySpan]:
    if call.spans or call.policy_version is None:
        return call.spans
    return [PolicySpan(version=call.policy_version, start=0, end=len(call.sampled_ids or []))]


def to_samples(
    trajectory: Trajectory, *, weight: float = 1.0, purposes: Collection[str] | None = WORK, replayed: bool = False
) -> list[Sample]:
    """Return the samples of the session that counts; calls without token ids give none.

    A call whose prompt does not begin with the ids so far (a context that was edited or rendered anew) begins another
    sample. A call on several branches is trained in the first.

    What was replayed from another session is context, and its ids have mask False: that session trains them.

    Args:
        trajectory: what was recorded.
        weight: of each sample.
        purposes: which calls are trained; None: all. The others stay what a later prompt holds of them.
        replayed: train replayed answers too, each recorded one once.

    Raises:
        InvalidArgument: a record has not one log-probability for each sampled id.
    """
    found: list[Sample] = []
    trained: set[str] = set()
    for branch in trajectory.branches():
        current: Sample | None = None
        for call in branch.calls:
            if purposes is not None and call.purpose not in purposes:
                continue
            prompt = trajectory.prompt_ids(call.id)
            if prompt is None or call.sampled_ids is None:
                current = None
                continue
            if current is None or prompt[: len(current.ids)] != current.ids:
                current = Sample(weight=weight)
                found.append(current)
            source = call.replayed or call.id
            current.add(prompt, call, train=source not in trained and (replayed or call.replayed is None))
            trained.add(source)
    return [sample for sample in found if any(sample.mask)]
