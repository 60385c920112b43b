"""An exchange: one call sampled once, recorded once, and delivered to whoever asks for it.

It runs in a task of its own, so a harness that goes away takes nothing with it: a whole answer is still finished and
recorded, and waits for the retry. Only a stream that nobody reads any more is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchard.core.errors import InternalError, OrchardError, StoreFailed
from orchard.core.ids import new_id
from orchard.core.retry import Patience
from orchard.core.tasks import finish
from orchard.gateway.dialects.base import Dialect, ModelRequest
from orchard.gateway.engine import Assembly, Delta, EngineRequest, Final, Prompted, plain
from orchard.gateway.errors import EngineUnavailable, told_code
from orchard.gateway.tree import CallTree, Placement, tools_digest
from orchard.trajectories import CallRecord, CallTimes, Usage

if TYPE_CHECKING:
    from orchard.gateway.session import Session

_CUT = EngineUnavailable("the call was cut: its reader is gone, or its session was closed", reason="cut")


class Recorder:
    """What a session knows of its durable calls, and how the next one is numbered."""

    def __init__(self) -> None:
        self.tree = CallTree()
        self.calls = 0
        self.tools_on_disk: set[str] = set()


class Exchange:
    """One call: running, then answered (``final``) or failed (``error``)."""

    def __init__(self, session: Session, asked: ModelRequest, dialect: Dialect, turn: int) -> None:
        recorder = session.recorder
        self._dialect = dialect.name
        self.id, self.response_id = new_id("call"), new_id(dialect.id_prefix)
        self.asked: ModelRequest | None = asked
        """The request, until the call has ended."""
        self.model, self.streamed = asked.model or session.model, asked.stream
        self.final: Final | None = None
        self.error: OrchardError | None = None
        self.deltas: list[Delta] = []
        self.pulse = asyncio.Event()
        """Set, and replaced by a new one, whenever anything above changes."""
        self._readers = 0
        self._delivered = False
        self._recording = self._cut = False
        self._session, self._turn, self._index = session, turn, recorder.calls
        recorder.calls += 1
        self._tools_hash = tools_digest(asked.tools)
        self._purpose = "side" if recorder.tools_on_disk and not asked.tools else "agent"
        self._placed: Placement | None = recorder.tree.place(asked.messages, self._tools_hash)
        self._prompted: Prompted | None = None
        self._times = CallTimes(received=datetime.now(UTC))
        self._task: asyncio.Task[None] | None = None

    @property
    def done(self) -> bool:
        """Whether it is over: ``final`` is durable, or ``error`` is set."""
        return self.final is not None or self.error is not None

    @property
    def alive(self) -> bool:
        """Whether an answer exists, or is coming."""
        return self.error is None and not self._cut

    @property
    def undelivered(self) -> bool:
        """Whether it is alive, and nobody has got it or is waiting for it."""
        return self.alive and self._readers == 0 and not self._delivered

    def start(self, when_over: Callable[[], None]) -> None:
        """Begin; ``when_over`` is called as soon as it is done."""
        self._task = asyncio.create_task(self._run(when_over), name=f"exchange {self.id}")

    def attach(self) -> None:
        """Note that somebody reads it."""
        self._readers += 1

    def detach(self, *, delivered: bool) -> None:
        """Note that he has got it whole, or is gone; a stream that nobody reads any more is cut."""
        self._readers -= 1
        self._delivered = self._delivered or delivered
        if self.streamed and self._readers == 0 and not delivered:
            self.cut()
        if self.done and self._readers == 0:
            self.deltas = []  # a later reader gets the whole answer as one

    def cut(self) -> None:
        """End the sampling now, if it is still going on; what has arrived is recorded as aborted.

        A whole answer cannot be cut any more: it reaches the disk.
        """
        if self._task is not None and not self._recording:
            self._cut = True
            self._task.cancel()

    async def settled(self) -> None:
        """Return when it is over and recorded."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, when_over: Callable[[], None]) -> None:
        final: Final | None = None
        error: OrchardError | None = None
        try:
            final = await self._sample()
        except asyncio.CancelledError:
            error = _CUT
        except OrchardError as known:
            error = known
        except Exception as fault:  # noqa: BLE001 — the seam to engines: a faulty one ends its call, told as ours
            error = InternalError(f"the engine {self._session.engine.name} broke: {fault!r}")
        self._recording = True
        try:
            await finish(self._session.store.append(self._call_record(final, error)))
        except StoreFailed as failed:
            final, error = None, failed
        except (TypeError, ValueError) as fault:  # what the engine or the harness sent is no JSON in UTF-8
            final, error = None, InternalError(f"the call cannot be recorded: {fault}")
        except asyncio.CancelledError:  # the loop is ending; nobody is left to be told
            final, error = None, _CUT
        else:
            self._remember(final)
        # No await from here on: the budget counts the call as running or as answered, never as both or neither.
        self._count(final, error)
        when_over()
        self.asked = self._placed = None  # a long session would else hold every prompt once more
        self.final, self.error = final, error
        self._notify()

    async def _sample(self) -> Final:
        """Ask the engine, again and again while it is away, until it answers or the time to hold is over."""
        patience = Patience(self._session.hold_seconds, first=0.2, most=5.0)
        while True:
            try:
                return await self._attempt()
            except EngineUnavailable as error:
                self._session.state.engine_failures += 1
                if self.deltas and self.streamed:
                    raise  # what went out live cannot be taken back
                self.deltas.clear()
                await patience.pause(error, error.retry_after or 0.0)

    async def _attempt(self) -> Final:
        session, asked = self._session, self._request
        request = EngineRequest(
            session=session.id, turn=self._turn, model=session.model or asked.model, messages=asked.messages,
            tools=asked.tools, params=asked.params, stream=asked.stream,
        )  # fmt: skip
        self._time(engine_start=datetime.now(UTC), first_token=None)
        async with aclosing(session.engine.complete(request)) as parts:
            async for raw in parts:
                part = plain(raw)
                if isinstance(part, Final):
                    self._time(engine_end=datetime.now(UTC))
                    return part
                if isinstance(part, Prompted):
                    self._prompted = part
                    continue
                if not self.deltas:
                    self._time(first_token=datetime.now(UTC))
                self.deltas.append(part)
                if asked.stream:  # else nobody wants to know before the end
                    self._notify()
        raise EngineUnavailable(f"the engine {session.engine.name} stopped without an answer")

    def _remember(self, final: Final | None) -> None:
        recorder = self._session.recorder
        if self._tools_hash is not None:
            recorder.tools_on_disk.add(self._tools_hash)
        assert self._placed is not None
        recorder.tree.add(self.id, self._placed, final.message if final else None, self._tools_hash)

    def _count(self, final: Final | None, error: OrchardError | None) -> None:
        state = self._session.state
        if final is not None:
            state.turns += 1
            state.last_error = None
            state.prompt_tokens += final.usage.prompt_tokens
            state.completion_tokens += final.usage.completion_tokens
        elif error is not None and error.reason == "cut":
            state.aborted += 1
        elif error is not None:
            state.failed += 1
            state.error, state.error_code, state.last_error = str(error), error.code, told_code(error)

    def _call_record(self, final: Final | None, error: OrchardError | None) -> CallRecord:
        session, placed = self._session, self._placed
        assert placed is not None
        return CallRecord(
            id=self.id, session=session.id, index=self._index, purpose=self._purpose, dialect=self._dialect,
            streamed=self.streamed, engine=session.engine.name, times=self._times, response_id=self.response_id,
            tools_hash=self._tools_hash, tools=self._tools_to_store(), **_placed_facts(placed),
            **(self._answered(final) if final else self._unanswered(error)),
        )  # fmt: skip

    def _answered(self, final: Final) -> dict[str, Any]:
        return {
            "model": final.model or self._session.model or self.model,
            "policy_version": final.policy_version or self._session.engine.policy_version,
            "sampling": self._request.params if final.sampling is None else final.sampling,
            "answer": final.message, "finish_reason": final.finish_reason, "usage": final.usage,
            "prompt_ids": final.prompt_ids, "sampled_ids": final.sampled_ids, "logprobs": final.logprobs,
        }  # fmt: skip

    def _unanswered(self, error: OrchardError | None) -> dict[str, Any]:
        partial = Assembly()
        for delta in self.deltas:
            partial.add(delta.delta)
        cut = error is not None and error.reason == "cut"
        return {
            "model": self._session.model or self.model,
            "policy_version": self._session.engine.policy_version,
            "sampling": self._request.params, "usage": Usage(),
            "answer": partial.message if self.deltas else None,
            "status": "aborted" if self.deltas or cut else "error",
            "error": str(error), "error_code": error.code if error else None,
        }  # fmt: skip

    def _tools_to_store(self) -> list[dict[str, Any]] | None:
        if self._tools_hash is None or self._tools_hash in self._session.recorder.tools_on_disk:
            return None
        return self._request.tools

    @property
    def _request(self) -> ModelRequest:
        assert self.asked is not None
        return self.asked

    def _time(self, **times: datetime | None) -> None:
        self._times = self._times.model_copy(update=times)

    def _notify(self) -> None:
        pulse, self.pulse = self.pulse, asyncio.Event()
        pulse.set()


def _placed_facts(placed: Placement) -> dict[str, Any]:
    return {
        "parent": placed.parent, "matched": placed.matched, "kept_messages": placed.kept_messages,
        "edits": placed.edits, "messages": placed.messages,
    }  # fmt: skip
