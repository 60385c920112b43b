"""An exchange: one call sampled once, recorded once, and delivered to whoever asks for it.

It runs in a task of its own, so a harness that goes away takes nothing with it: a whole answer is still finished and
recorded, and waits for the retry. Only a stream that nobody reads any more is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchard.core.errors import InternalError, OrchardError, StoreFailed
from orchard.core.ids import new_id
from orchard.core.retry import Patience
from orchard.core.tasks import finish
from orchard.gateway.dialects.base import Dialect, ModelRequest
from orchard.gateway.engine import Answering, Assembly, Delta, EngineRequest, Final, Prompted, plain
from orchard.gateway.errors import EngineUnavailable, told_code
from orchard.gateway.recording import Draft
from orchard.gateway.tokens import Tokens
from orchard.trajectories import CallRecord, Usage

if TYPE_CHECKING:
    from orchard.gateway.session import Session

_CUT = EngineUnavailable("the call was cut: its reader is gone, or its session was closed", reason="cut")


class Exchange:
    """One call: running, then answered (``final``) or failed (``error``)."""

    def __init__(self, session: Session, asked: ModelRequest, dialect: Dialect, turn: int) -> None:
        self.asked: ModelRequest | None = asked
        """The request, until the call has ended."""
        self.response_id = new_id(dialect.id_prefix)
        self.model, self.streamed = asked.model or session.model, asked.stream
        self.final: Final | None = None
        self.error: OrchardError | None = None
        self.deltas: list[Delta] = []
        self.pulse = asyncio.Event()
        """Set, and replaced by a new one, whenever anything above changes."""
        self._readers = 0
        self._delivered = False
        self._recording = self._cut = False
        self._session, self._turn = session, turn
        self._draft: Draft | None = session.recorder.draft(session, asked, dialect.name, self.response_id)
        self.id = self._draft.id
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
        self._recording, usage = True, Usage()
        try:
            record = self._record(final, error)
            await finish(self._session.store.append(record))
        except StoreFailed as failed:
            final, error = None, failed
        except (TypeError, ValueError) as fault:  # what the engine or the harness sent is no JSON in UTF-8
            final, error = None, InternalError(f"the call cannot be recorded: {fault}")
        except asyncio.CancelledError:  # the loop is ending; nobody is left to be told
            final, error = None, _CUT
        else:
            usage = record.usage
            self._session.recorder.remember(self._drafted, final)
        # No await from here on: the budget counts the call as running or as answered, never as both or neither.
        self._count(final, error, usage)
        when_over()
        self.asked = self._draft = None  # a long session would else hold every prompt once more, and its ids
        self.final, self.error = final and final.delivered(), error
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
                self._drafted.begin_again()
                await patience.pause(error, error.retry_after or 0.0)

    async def _attempt(self) -> Final:
        session, asked, draft = self._session, self._request, self._drafted
        request = EngineRequest(
            session=session.id, turn=self._turn, model=session.model or asked.model, messages=asked.messages,
            tools=asked.tools, params=draft.params, stream=asked.stream, prefix=draft.placed.prefix(),
        )  # fmt: skip
        draft.time(engine_start=datetime.now(UTC), first_token=None)
        async with aclosing(session.engine.complete(request)) as parts:
            async for raw in parts:
                part = plain(raw)
                if isinstance(part, Final):
                    draft.time(engine_end=datetime.now(UTC))
                    draft.check(part)
                    return part
                if isinstance(part, Answering | Prompted | Tokens):
                    draft.take(part)
                    continue
                draft.begun()
                self.deltas.append(part)
                if asked.stream:  # else nobody wants to know before the end
                    self._notify()
        raise EngineUnavailable(f"the engine {session.engine.name} stopped without an answer")

    def _count(self, final: Final | None, error: OrchardError | None, usage: Usage) -> None:
        state, prices = self._session.state, self._session.budget.prices
        state.prompt_tokens += usage.prompt_tokens  # those of an answer that was cut were sampled too
        state.completion_tokens += usage.completion_tokens
        state.cost += prices.of(usage) if prices is not None else 0.0
        if final is not None:
            state.turns += 1
            state.last_error = None
        elif error is not None and error.reason == "cut":
            state.aborted += 1
        elif error is not None:
            state.failed += 1
            state.error, state.error_code, state.last_error = str(error), error.code, told_code(error)

    def _record(self, final: Final | None, error: OrchardError | None) -> CallRecord:
        if final is not None:
            return self._drafted.answered(final)
        partial = Assembly()
        for delta in self.deltas:
            partial.add(delta.delta)
        return self._drafted.unanswered(partial.message if self.deltas else None, error)

    @property
    def _request(self) -> ModelRequest:
        assert self.asked is not None
        return self.asked

    @property
    def _drafted(self) -> Draft:
        assert self._draft is not None
        return self._draft

    def _notify(self) -> None:
        pulse, self.pulse = self.pulse, asyncio.Event()
        pulse.set()
