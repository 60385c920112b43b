"""An engine that answers from a recorded trajectory, and may hand over to a live one after call k.

So any harness, with all its inner state, can be branched at any turn: up to there each request is checked to be the
recorded one. Token ids are given as they were recorded, so a token-exact live engine has them as its prefix; the clock
is pinned by that: whatever date a harness tells of now, the model sees the recorded one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass

from orchard.core.errors import InvalidArgument
from orchard.gateway.engine import Answering, Delta, Engine, EngineRequest, Final, Part, Prompted, as_delta
from orchard.gateway.engines.changing import Message, causes, steady
from orchard.gateway.errors import ReplayMismatch
from orchard.gateway.tree import tools_digest
from orchard.trajectories import CallRecord, Trajectory
from orchard.trajectories.messages import first_difference, keys

_Way = Callable[[Message], Message]
"""How a message is read when it is compared."""


class ReplayEngine:
    """Replays the answered calls of the session that counts.

    A request is the recorded one if it says the same, or all but what the clock and chance write into it
    (``changing``); the replayed call's record names these then. Concurrent calls of sub-agents may come in another
    order than recorded: a request is answered by the first unused recorded call with the same prompt and tools.

    Args:
        trajectory: what answers.
        calls: how many of its calls answer; all by default.
        then: what answers afterwards; without one, a further call is refused.
        exact: refuse what the clock and chance have changed too.
    """

    name = "replay"

    def __init__(
        self, trajectory: Trajectory, *, calls: int | None = None, then: Engine | None = None, exact: bool = False
    ) -> None:
        answered = _answered(trajectory)
        if calls is not None and not 0 <= calls <= len(answered):
            raise InvalidArgument(f"calls must be 0 to {len(answered)}, not {calls}", field="calls")
        self._calls = answered if calls is None else answered[:calls]
        self._trajectory, self._then = trajectory, then
        self._ways = (_as_it_is,) if exact else (_as_it_is, steady)
        self._keys = [[_asked(trajectory, call, way) for call in self._calls] for way in self._ways]
        self._used: dict[str, set[int]] = {}

    @property
    def policy_version(self) -> str | None:
        """That of the live engine; a replayed call carries the recorded one."""
        return self._then.policy_version if self._then else None

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        """Yield the recorded answer, or the live engine's."""
        used = self._used.setdefault(request.session, set())
        if len(used) == len(self._calls):
            if self._then is None:
                raise ReplayMismatch(f"all {len(self._calls)} recorded calls are answered, and here is one more")
            yield Answering(self._then.name)
            async for part in self._then.complete(request):
                yield part
            return
        call = self._recorded(request, used)
        assert call.answer is not None
        but_for = causes(self._trajectory.prompt(call.id), request.messages)
        yield Answering(self.name, replayed=call.id, but_for=but_for)
        prompt_ids = self._trajectory.prompt_ids(call.id)
        if prompt_ids is not None and call.mode is not None:
            yield Prompted(prompt_ids, call.mode, call.template_hash or "", call.spliced_ids)
        yield Delta(as_delta(call.answer))
        yield Final(
            message=call.answer, finish_reason=call.finish_reason or "stop", usage=call.usage, model=call.model,
            sampling=call.sampling, policy_version=call.policy_version, prompt_ids=prompt_ids,
            sampled_ids=call.sampled_ids, logprobs=call.logprobs, spans=call.spans, masked=call.masked,
            routed_experts=call.routed_experts, stop_string=call.stop_string,
        )  # fmt: skip

    async def close(self) -> None:
        """Close the live engine."""
        if self._then is not None:
            await self._then.close()

    def _recorded(self, request: EngineRequest, used: set[int]) -> CallRecord:
        unused = [index for index in range(len(self._calls)) if index not in used]
        for way, known in zip(self._ways, self._keys, strict=True):
            given = (keys(map(way, request.messages)), tools_digest(request.tools))
            for index in [*unused, *used]:  # a used one again: its answer may not have reached the disk or the harness
                if known[index] == given:
                    used.add(index)
                    return self._calls[index]
        expected = self._trajectory.prompt(self._calls[unused[0]].id)
        difference = _difference(expected, request.messages, self._ways[-1])
        raise ReplayMismatch(f"not the recorded request of call {unused[0]}: {difference}")


@dataclass(frozen=True)
class Reproduced:
    """How far a harness that was run again sent the recorded requests."""

    calls: int
    """Answered calls of the recorded trajectory."""
    same: int
    """How many of them, from the first on, were asked for again."""
    difference: str | None
    """What was first asked otherwise; None where nothing was."""

    @property
    def share(self) -> float:
        """The share of the prefixes that came again: at so many of its turns the trajectory can be branched."""
        return self.same / self.calls if self.calls else 1.0


def reproduced(recorded: Trajectory, rerun: Trajectory, *, exact: bool = False) -> Reproduced:
    """Compare a trajectory with that of a run of its harness against ``ReplayEngine``.

    Args:
        recorded: what answered.
        rerun: the run again.
        exact: what the clock and chance have changed is a difference too.
    """
    calls, way = _answered(recorded), _as_it_is if exact else steady
    again = Counter(_word(_asked(rerun, call, way)) for call in _answered(rerun))
    same = 0
    for call in calls:
        word = _word(_asked(recorded, call, way))
        if not again[word]:
            break
        again[word] -= 1
        same += 1
    if same == len(calls):
        return Reproduced(same, same, None)
    there = [call for call in rerun.calls if call.status in ("ok", "error")][same : same + 1]
    if not there:
        return Reproduced(len(calls), same, "there was no further request")
    difference = _difference(recorded.prompt(calls[same].id), rerun.prompt(there[0].id), way)
    return Reproduced(len(calls), same, difference)


def _answered(trajectory: Trajectory) -> list[CallRecord]:
    return [call for call in trajectory.calls if call.status == "ok" and call.answer is not None]


def _as_it_is(message: Message) -> Message:
    return message


def _asked(trajectory: Trajectory, call: CallRecord, way: _Way) -> tuple[list[bytes], str | None]:
    return keys(map(way, trajectory.prompt(call.id))), call.tools_hash


def _difference(recorded: Iterable[Message], given: Iterable[Message], way: _Way) -> str:
    return first_difference([*map(way, recorded)], [*map(way, given)]) or "the tools differ"


def _word(asked: tuple[Sequence[bytes], str | None]) -> tuple[bytes, str | None]:
    return b"".join(asked[0]), asked[1]
