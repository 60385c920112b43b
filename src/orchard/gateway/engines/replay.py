"""An engine that answers from a recorded trajectory, and may hand over to a live one after call k.

So any harness can be branched at any turn: up to there each request is checked to be the recorded one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from orchard.core.errors import InvalidArgument
from orchard.gateway.engine import Delta, Engine, EngineRequest, Final, Part, as_delta
from orchard.gateway.errors import ReplayMismatch
from orchard.gateway.tree import tools_digest
from orchard.trajectories import CallRecord, Trajectory
from orchard.trajectories.messages import first_difference, keys


class ReplayEngine:
    """Replays the answered calls of the session that counts.

    Concurrent calls of sub-agents may come in another order than recorded: a request is answered by the first
    unused recorded call with the same prompt and tools.

    Args:
        trajectory: what answers.
        calls: how many of its calls answer; all by default.
        then: what answers afterwards; without one, a further call is refused.
    """

    name = "replay"

    def __init__(self, trajectory: Trajectory, *, calls: int | None = None, then: Engine | None = None) -> None:
        answered = [call for call in trajectory.calls if call.status == "ok" and call.answer is not None]
        if calls is not None and not 0 <= calls <= len(answered):
            raise InvalidArgument(f"calls must be 0 to {len(answered)}, not {calls}", field="calls")
        self._calls = answered if calls is None else answered[:calls]
        self._trajectory, self._then = trajectory, then
        self._keys = [(keys(trajectory.prompt(call.id)), call.tools_hash) for call in self._calls]
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
            async for part in self._then.complete(request):
                yield part
            return
        call = self._recorded(request, used)
        assert call.answer is not None
        yield Delta(as_delta(call.answer))
        yield Final(
            message=call.answer, finish_reason=call.finish_reason or "stop", usage=call.usage, model=call.model,
            sampling=call.sampling, policy_version=call.policy_version, prompt_ids=self._prompt_ids(call),
            sampled_ids=call.sampled_ids, logprobs=call.logprobs,
        )  # fmt: skip

    async def close(self) -> None:
        """Close the live engine."""
        if self._then is not None:
            await self._then.close()

    def _recorded(self, request: EngineRequest, used: set[int]) -> CallRecord:
        given = (keys(request.messages), tools_digest(request.tools))
        unused = [index for index in range(len(self._calls)) if index not in used]
        for index in [*unused, *used]:  # a used one again: its answer may not have reached the disk or the harness
            if self._keys[index] == given:
                used.add(index)
                return self._calls[index]
        expected = self._calls[unused[0]]
        difference = first_difference(self._trajectory.prompt(expected.id), request.messages) or "the tools differ"
        raise ReplayMismatch(f"not the recorded request of call {unused[0]}: {difference}")

    def _prompt_ids(self, call: CallRecord) -> list[int] | None:
        """Recorded ids are kept whole only where the record itself kept none of its parent's."""
        return call.prompt_ids if call.kept_ids == 0 else None
