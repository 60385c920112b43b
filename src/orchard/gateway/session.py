"""A session: one try of one rollout, with its budget, its tree of calls, and what became of them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchard.core.errors import InvalidArgument
from orchard.core.ids import new_id
from orchard.gateway.dialects.base import Dialect, ModelRequest
from orchard.gateway.engine import Engine
from orchard.gateway.errors import BudgetExceeded
from orchard.gateway.exchange import Exchange
from orchard.gateway.recording import Recorder
from orchard.gateway.sampling import check_tool_choice
from orchard.trajectories import RefusalRecord, RetryRecord, Store, Usage


@dataclass(frozen=True)
class Prices:
    """What tokens cost, a million of them, in any one currency."""

    prompt: float
    completion: float
    cached: float | None = None
    """Prompt tokens that the engine had computed before; None: as others."""

    def of(self, usage: Usage) -> float:
        """Return what a call cost."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = fresh * self.prompt + usage.cached_tokens * cached + usage.completion_tokens * self.completion
        return total / 1e6


@dataclass(frozen=True)
class Budget:
    """Bounds of a session, looked at before each call; None: no bound."""

    turns: int | None = None
    tokens: int | None = None
    """Prompt and completion tokens of all calls together, as the engine counts them."""
    seconds: float | None = None
    """Wall time since the session was opened."""
    cost: float | None = None
    """Of all calls together, by ``prices``."""
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and self.prices is None:
            raise InvalidArgument("a budget of cost wants the prices of tokens", field="prices")

    def facts(self) -> dict[str, float]:
        """Return the bounds that are set."""
        every = {"turns": self.turns, "tokens": self.tokens, "seconds": self.seconds, "cost": self.cost}
        return {name: float(value) for name, value in every.items() if value is not None}


@dataclass(frozen=True)
class Access:
    """How a session is reached, where its owner chooses."""

    name: str = ""
    """Stands in its URL in place of its id: letters, digits and ``-``, ``_``, ``.``, 200 at most. Whoever knows or
    guesses it may use the session, so it is for a gateway that only its owner can reach."""
    api_key: str = ""


@dataclass
class SessionState:
    """What happened so far, for whoever opened the session."""

    turns: int = 0
    """Calls answered."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Of all calls, cut ones too, where the budget names prices."""
    cut: str | None = None
    """The budget that ended it (``turns``, ``tokens``, ``seconds``, ``cost``), once a call was refused for it."""
    engine_failures: int = 0
    """Failed attempts at the engine, those that a later attempt made good included."""
    failed: int = 0
    """Calls that ended in an error."""
    error: str | None = None
    """The last error that a call ended in."""
    error_code: str | None = None
    """Its code: ``engine_unavailable``, ``engine_refused``, ``store_failed`` …."""
    last_error: str | None = None
    """The code that the harness was told, where the newest call or request to end did so in an error."""
    aborted: int = 0
    """Calls cut in mid-answer."""
    retries: int = 0
    """Requests answered from the record."""
    refusals: int = 0
    """Requests refused before an engine saw them."""
    last_call: datetime | None = None
    """When the last request came."""


@dataclass(eq=False)
class Session:
    """One try of one rollout. Made by ``Gateway.open_session``."""

    id: str
    url: str
    """Base URL (without ``/v1``) on this machine."""
    target: str
    """``unix:PATH`` of a socket on which no other session exists: the end of a tunnel."""
    engine: Engine
    model: str
    """Model name that the engine is asked for, and that ``/models`` lists."""
    store: Store
    aliases: tuple[str, ...] = ()
    """Further names that ``/models`` lists."""
    training: bool = False
    """Whether its calls are to be trained on. Parameters that change the distribution (top-p, penalties, logit bias …)
    are then left out, and named in the record; an answer without token ids and their log-probabilities is refused."""
    recorder: Recorder = field(default_factory=Recorder)
    hold_seconds: float = 240.0
    """How long a call waits for an engine that is away."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    budget: Budget = Budget()
    api_key: str = field(default_factory=lambda: "sk-orchard-" + secrets.token_urlsafe(24), repr=False)
    state: SessionState = field(default_factory=SessionState)
    on_close: Callable[[Session], Awaitable[None]] | None = field(default=None, repr=False)
    _opened: float = field(default_factory=time.monotonic)
    _running: set[Exchange] = field(default_factory=set[Exchange])
    _exchanges: dict[bytes, list[Exchange]] = field(default_factory=dict[bytes, list[Exchange]], repr=False)

    async def close(self) -> None:
        """Cut the calls that are running, and end the session: its key, URL and socket name nothing any more."""
        if self.on_close is not None:
            await self.on_close(self)

    def find_again(self, digest: bytes, *, retry: bool) -> Exchange | None:
        """Return the exchange that the body of this digest asks for again, if it is a retry (design, section 7)."""
        known = self._exchanges.get(digest, [])
        undelivered = [one for one in known if one.undelivered]
        if undelivered:
            return undelivered[-1]
        alive = [one for one in known if one.alive]
        return alive[-1] if retry and alive else None

    def admit(self, asked: ModelRequest, dialect: Dialect, digest: bytes) -> Exchange:
        """Start a new exchange, in a task that the session owns.

        Raises:
            BudgetExceeded: turns, tokens or seconds are used up.
            InvalidArgument: its ``tool_choice`` chooses no tool that it has.
        """
        check_tool_choice(asked.params.get("tool_choice"), asked.tools)
        self._check_budget()
        turn = self.state.turns + len(self._running)
        exchange = Exchange(self, asked, dialect, turn)
        self._running.add(exchange)
        self._exchanges.setdefault(digest, []).append(exchange)
        exchange.start(lambda: self._running.discard(exchange))
        return exchange

    def _check_budget(self) -> None:
        state, budget = self.state, self.budget
        spent = {
            "turns": state.turns + len(self._running),
            "tokens": state.prompt_tokens + state.completion_tokens,
            "seconds": time.monotonic() - self._opened,
            "cost": state.cost,
        }
        for name, bound in budget.facts().items():
            if spent[name] >= bound:
                state.cut = state.cut or name
                state.last_error = BudgetExceeded.code
                raise BudgetExceeded(f"the session's budget of {bound:g} {name} is used up", budget=name)

    async def refuse(self, code: str, detail: str) -> None:
        """Record that a request was refused before any engine saw it.

        Raises:
            StoreFailed: it is not on disk.
        """
        self.state.refusals += 1
        await self.store.append(RefusalRecord(session=self.id, at=datetime.now(UTC), code=code, detail=detail))

    async def note_retry(self, exchange: Exchange) -> None:
        """Record that a call's answer goes out again.

        Raises:
            StoreFailed: it is not on disk.
        """
        self.state.retries += 1
        await self.store.append(RetryRecord(session=self.id, call=exchange.id, at=datetime.now(UTC)))

    async def end_calls(self) -> None:
        """Cut the calls that are running; each is recorded as aborted before this returns."""
        running = list(self._running)
        for exchange in running:
            exchange.cut()
        await asyncio.gather(*(exchange.settled() for exchange in running))


def new_session_id() -> str:
    """Return an id that cannot be guessed: in a URL it is the permission too."""
    return new_id("se") + secrets.token_hex(6)


def body_digest(path: str, body: bytes) -> bytes:
    """Return what a session knows a request by."""
    return hashlib.blake2b(body, digest_size=16, person=path.encode()[-16:]).digest()
