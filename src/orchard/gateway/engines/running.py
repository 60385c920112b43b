"""Calls of a token engine that are running: which weights sampled their ids, and how one is ended from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Literal, TypeVar
from uuid import uuid4

from orchard.gateway.tokens import Ended
from orchard.trajectories import PolicySpan

_T = TypeVar("_T")
UNKNOWN = "unknown"
"""The version of weights that nobody named, where a span must name them."""


class Aborted(Exception):
    """The call was ended from outside."""


class Call:
    """One call. Whatever it waits for with ``wait`` ends when it is aborted."""

    def __init__(self) -> None:
        self.id = uuid4().hex
        self.ids = 0
        """How many ids it has got."""
        self._spans: list[tuple[str | None, int]] = []
        self._aborted = False
        self._scope: asyncio.Timeout | None = None

    def sampled(self, count: int, version: str | None) -> None:
        """Note that ``count`` more ids came from the weights ``version``."""
        if not self._spans or self._spans[-1][0] != version:
            self._spans.append((version, self.ids))
        self.ids += count

    def ended(self, reason: Literal["stop", "length", "abort"], version: str | None) -> Ended:
        """Return its end; ``version`` is that of the weights where it got no ids."""
        last = self._spans[-1][0] if self._spans else version
        return Ended(reason, last, self._changes())

    def _changes(self) -> tuple[PolicySpan, ...]:
        if len(self._spans) < 2:
            return ()
        ends = [start for _, start in self._spans[1:]] + [self.ids]
        return tuple(
            PolicySpan(version=version or UNKNOWN, start=start, end=end)
            for (version, start), end in zip(self._spans, ends, strict=True)
        )

    async def wait(self, what: Awaitable[_T]) -> _T:
        """Return what ``what`` does.

        Raises:
            Aborted: the call was aborted meanwhile.
        """
        try:
            async with asyncio.timeout(0 if self._aborted else None) as self._scope:
                return await what
        except TimeoutError:
            if self._aborted:
                raise Aborted from None
            raise
        finally:
            self._scope = None

    def abort(self) -> None:
        """End it: what it waits for now, or next, ends in ``Aborted``."""
        self._aborted = True
        if self._scope is not None:
            self._scope.reschedule(0)


class Calls:
    """The running calls, by session."""

    def __init__(self) -> None:
        self._running: dict[str, set[Call]] = {}

    @contextmanager
    def one(self, session: str) -> Generator[Call]:
        """Give a call that runs as long as the block does."""
        call = Call()
        self._running.setdefault(session, set()).add(call)
        try:
            yield call
        finally:
            calls = self._running[session]
            calls.discard(call)
            if not calls:
                del self._running[session]

    def of(self, session: str) -> list[Call]:
        """Return those of a session."""
        return list(self._running.get(session, ()))
