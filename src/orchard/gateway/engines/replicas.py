"""Several replicas of one engine as one: a session stays with its replica, whose cache holds its prefix.

A new session goes to the replica with the fewest calls. One that is away is left out for a while, and a call that has
given nothing yet goes to another. One that missed new weights gets them before it samples again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from orchard.core.errors import InvalidArgument
from orchard.gateway.engine import Engine, EngineRequest, Part
from orchard.gateway.errors import EngineRefused, EngineUnavailable
from orchard.gateway.tokens import Ended, TokenEngine, TokenRequest, Tokens

_log = logging.getLogger(__name__)
_SESSIONS = 1 << 16
"""How many sessions are remembered; an older one is placed anew."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def policy_version(self) -> str | None: ...
    async def close(self) -> None: ...


_E = TypeVar("_E", bound=_Named)
_P = TypeVar("_P")


class _Replica(Generic[_E]):
    def __init__(self, engine: _E) -> None:
        self.engine = engine
        self.calls = 0
        self.sessions = 0
        self.away_until = 0.0
        self.behind = False
        """Whether it missed the weights that the others have."""
        self.catching_up = asyncio.Lock()

    @property
    def load(self) -> tuple[int, int]:
        return self.calls, self.sessions


class _Pool(Generic[_E]):
    """Who answers which session.

    Args:
        engines: the replicas.
        away_seconds: how long one that failed is left out.
    """

    def __init__(self, engines: Sequence[_E], *, away_seconds: float = 5.0) -> None:
        if not engines:
            raise InvalidArgument("there must be at least one replica", field="engines")
        self.name = engines[0].name
        self._replicas = [_Replica(engine) for engine in engines]
        self._away_seconds = away_seconds
        self._sessions: OrderedDict[str, _Replica[_E]] = OrderedDict()

    @property
    def policy_version(self) -> str | None:
        """That of all of them; None where they differ: each answer names its own."""
        versions = {replica.engine.policy_version for replica in self._replicas}
        return versions.pop() if len(versions) == 1 else None

    async def close(self) -> None:
        """Close all."""
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas))

    async def _ask(self, session: str, begin: Callable[[_E], AsyncGenerator[_P]]) -> AsyncGenerator[_P]:
        """Yield what a replica gives; a session's own is asked first."""
        failure: EngineUnavailable | None = None
        for replica in self._order(session):
            begun = False
            self._place(session, replica)
            replica.calls += 1
            try:
                await self._made_ready(replica)
                async with aclosing(begin(replica.engine)) as parts:
                    async for part in parts:
                        begun = True
                        yield part
                return
            except EngineUnavailable as error:
                replica.away_until = time.monotonic() + max(self._away_seconds, error.retry_after or 0.0)
                if begun:
                    raise
                failure = error
            finally:
                replica.calls -= 1
        assert failure is not None
        raise failure

    def _order(self, session: str) -> list[_Replica[_E]]:
        """Those that are there, a session's own first; where none is, the one that is awaited soonest."""
        now, own = time.monotonic(), self._sessions.get(session)
        there = [replica for replica in self._replicas if replica.away_until <= now]
        if not there:
            return [min(self._replicas, key=lambda replica: replica.away_until)]
        return sorted(there, key=lambda replica: (replica is not own, replica.load))

    def _place(self, session: str, replica: _Replica[_E]) -> None:
        before = self._sessions.pop(session, None)
        if before is not None:
            before.sessions -= 1
        elif len(self._sessions) >= _SESSIONS:
            self._sessions.popitem(last=False)[1].sessions -= 1
        self._sessions[session] = replica
        replica.sessions += 1

    @abstractmethod
    async def _made_ready(self, replica: _Replica[_E]) -> None: ...


class Replicas(_Pool[Engine]):
    """Several equal engines of messages as one ``Engine``."""

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        """Yield the answer of the session's replica."""
        async with aclosing(self._ask(request.session, lambda engine: engine.complete(request))) as parts:
            async for part in parts:
                yield part

    async def _made_ready(self, replica: _Replica[Engine]) -> None:
        return


class TokenReplicas(_Pool[TokenEngine]):
    """Several equal engines of tokens as one ``TokenEngine``."""

    def __init__(self, engines: Sequence[TokenEngine], *, away_seconds: float = 5.0) -> None:
        super().__init__(engines, away_seconds=away_seconds)
        self._given: tuple[Path, str] | None = None

    @property
    def context(self) -> int | None:
        """The smallest of those that are known."""
        return min((known for one in self._replicas if (known := one.engine.context) is not None), default=None)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        """Yield the ids of the session's replica."""
        async with aclosing(self._ask(request.session, lambda engine: engine.generate(request))) as parts:
            async for part in parts:
                yield part

    async def abort(self, session: str) -> None:
        """End what is being sampled for a session, wherever that is."""
        await asyncio.gather(*(replica.engine.abort(session) for replica in self._replicas))

    async def update_weights(self, path: Path, version: str) -> None:
        """Give all of them new weights at once; one that cannot take them now gets them before it samples again.

        Raises:
            EngineUnavailable: none of them took them.
            EngineRefused: they are not weights of this model.
        """
        self._given = (path, version)
        for replica in self._replicas:
            replica.behind = True
        said = await asyncio.gather(*(self._catch_up(one) for one in self._replicas), return_exceptions=True)
        failures = [failure for failure in said if isinstance(failure, BaseException)]
        for failure in failures:
            if len(failures) == len(said) or not isinstance(failure, EngineUnavailable):
                raise failure
            _log.warning("a replica did not take the weights %s yet: %s", version, failure)

    async def _made_ready(self, replica: _Replica[TokenEngine]) -> None:
        try:
            await self._catch_up(replica)
        except EngineRefused as error:  # the others took these weights: it is not the call that is wrong
            raise EngineUnavailable(f"a replica refuses the weights that the others have: {error}") from error

    async def _catch_up(self, replica: _Replica[TokenEngine]) -> None:
        async with replica.catching_up:
            if replica.behind and self._given is not None:
                given = self._given
                await replica.engine.update_weights(*given)
                replica.behind = given != self._given
