"""What token engines behind a server of their own have in common; vLLM and SGLang differ in words only."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

from orchard.gateway.engines.http import ModelServer, events
from orchard.gateway.engines.running import Aborted, Call, Calls
from orchard.gateway.errors import ContextOverflow, EngineRefused, EngineUnavailable
from orchard.gateway.tokens import Ended, TokenRequest, Tokens
from orchard.trajectories.messages import Message


class Answer(ABC):
    """What has been read of one answer."""

    def __init__(self, request: TokenRequest, call: Call) -> None:
        self.prompt, self.call = list(request.ids), call
        self.reason: str | None = None
        self.cached_tokens = 0
        self.routed_experts: str | None = None

    @abstractmethod
    def take(self, facts: Message, version: str | None) -> Tokens:
        """Take one event, or a whole answer, and return the ids that it adds; ``version`` sampled them."""

    def ended(self, version: str | None) -> Ended:
        """Return the end.

        Raises:
            EngineUnavailable: it did not come to one.
        """
        if self.reason not in ("stop", "length", "abort"):
            raise EngineUnavailable(f"the server's answer ended as {self.reason!r}, which is no end")
        end = self.call.ended(self.reason, version)
        return replace(end, cached_tokens=self.cached_tokens, routed_experts=self.routed_experts)


class ServedEngine(ABC):
    """A ``TokenEngine`` behind HTTP.

    Args:
        base_url: with or without ``/v1``.
        model: as the server calls it; its first one by default.
        api_key: sent as bearer; never recorded.
        read_seconds: longest silence of the server before it counts as away.
        policy_version: of the weights that it was started with, as recorded.
    """

    name: str
    _path: str
    """Of what it is asked by."""
    _raw_logprobs: str
    """How its log-probabilities come to be those of the sampled distribution."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str = "",
        read_seconds: float = 900.0,
        policy_version: str | None = None,
    ) -> None:
        self.policy_version = policy_version
        self.context: int | None = None
        url = base_url.rstrip("/").removesuffix("/v1")
        answers = f"an answer of {self.name}'s"
        self._server = ModelServer(url, answers=answers, api_key=api_key, read_seconds=read_seconds)
        self._model = model
        self._calls, self._updating, self._meeting = Calls(), asyncio.Lock(), asyncio.Lock()
        self._known = False
        """Whether the server that is there now was asked what it is."""
        self._torn = False
        """Whether an update broke off, so that the server may be held, or nobody can name the weights."""
        self._given: tuple[Path, str] | None = None
        """The weights that it was given last, and their version."""
        self._seen = 0
        """Up to which connection the server was seen to hold them."""
        self._processed = False
        """Whether its log-probabilities were seen to be those of the sampled distribution."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        """Yield the sampled ids as they come.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            EngineRefused: the server gives no ids, or log-probabilities of another distribution.
            EngineUnavailable: it is away, or broke off.
        """
        await self._meet(request)
        with self._calls.one(request.session) as call, self._using():
            reading = self._reading(request, call)
            try:
                async with aclosing(self._read(self._body(request, call), reading)) as answer:
                    async for tokens in answer:
                        yield tokens
                end = reading.ended(self.policy_version)
            except Aborted:
                end = call.ended("abort", self.policy_version)
            except EngineUnavailable:
                self._known = False  # another server may be there next time
                raise
            except EngineRefused as error:
                if error.http_status == 404:
                    await self._see_weights()
                raise
        yield end

    async def abort(self, session: str) -> None:
        """End what is being sampled for a session: the server stops when its answer is not read any more."""
        for call in self._calls.of(session):
            call.abort()

    async def update_weights(self, path: Path, version: str) -> None:
        """Sample with the weights in ``path``, a folder on the server's machine.

        Running answers are held meanwhile and go on with the new weights. If it breaks off, the server stays held and
        nothing is sampled any more until an update has succeeded.

        Raises:
            EngineUnavailable: the server is away, or failed.
            EngineRefused: it does not take them.
        """
        async with self._updating:
            await self._take(path, version)

    async def health(self) -> None:
        """Return if the server works.

        Raises:
            EngineUnavailable: it does not.
        """
        await self._server.call("/health", method="GET")

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    @abstractmethod
    def _body(self, request: TokenRequest, call: Call) -> Message: ...

    @abstractmethod
    def _reading(self, request: TokenRequest, call: Call) -> Answer: ...

    @abstractmethod
    def _probe(self, request: TokenRequest, temperature: float) -> Message:
        """Return the body that asks for one id, and for the log-probabilities of the two likeliest."""

    @abstractmethod
    def _second(self, facts: Message) -> float:
        """Return the log-probability of the second likeliest id: it is told apart even where the first is certain."""

    @abstractmethod
    async def _hold(self) -> None: ...

    @abstractmethod
    async def _load(self, path: Path, version: str) -> None: ...

    @abstractmethod
    async def _go_on(self) -> None: ...

    @abstractmethod
    async def _holds(self, version: str) -> bool:
        """Return whether the server has the weights that it was given under this version."""

    async def _take(self, path: Path, version: str) -> None:
        before, self._torn = self._torn, True  # whatever breaks off from here on may leave the server held
        try:
            await self._hold()
        except EngineRefused:  # it is as it was
            self._torn = before
            raise
        await self._load(path, version)
        # Held answers have arrived as far as they go by now: whatever comes later, the new weights have sampled.
        self.policy_version, self._given = version, (path, version)
        await self._go_on()
        self._torn = False

    async def _see_weights(self) -> None:
        """Behind a new connection may be a server that was started anew, and so with the weights of its start.

        Raises:
            EngineUnavailable: it was; it has the given weights again.
        """
        if self._given is None or self._seen == self._server.connections:
            return
        async with self._updating:
            made, (path, version) = self._server.connections, self._given
            if not await self._holds(version):
                await self._take(path, version)
                raise EngineUnavailable("the server was started anew, and was given its weights again")
            self._seen = made

    def _using(self) -> AbstractContextManager[None]:
        """Return what keeps on the server, while an answer runs, what it is sampled with."""
        return nullcontext()

    def _version(self, reading: Answer) -> str | None:
        """Return which weights sampled what comes in now."""
        return self.policy_version

    def _room(self, request: TokenRequest) -> int:
        """Return how many ids to sample at most."""
        assert self.context is not None
        room = self.context - len(request.ids)
        return min(request.sampling.max_tokens or room, room)

    async def _meet(self, request: TokenRequest) -> None:
        """Learn what the server is, once, and see that it can answer the request."""
        if self._torn and not self._updating.locked():
            raise EngineUnavailable("an update of the weights broke off: update them again")
        async with self._meeting:
            if not self._known:
                await self._look()
        if self.context is not None and len(request.ids) >= self.context:
            raise ContextOverflow(len(request.ids), self.context)
        if not request.sampling.plain:
            async with self._meeting:
                if not self._processed:
                    await self._see_processed(request)

    async def _look(self) -> None:
        async with self._server.ask("/v1/models", method="GET") as response:
            models = cast("list[Message]", (await response.json()).get("data") or [])
            known = [model for model in models if self._model in (None, model.get("id"))]
            if not known or not isinstance(known[0].get("max_model_len"), int):
                raise EngineRefused(f"{self._server.url} is not {self.name}, or has no model {self._model or 'at all'}")
            self._model, self.context = known[0]["id"], known[0]["max_model_len"]
        self._known, self._processed = True, False

    async def _see_processed(self, request: TokenRequest) -> None:
        """The same prompt at two temperatures has two distributions, unless they are told from before it is applied."""
        seen: list[float] = []
        for temperature in (1.0, 2.0):  # vLLM takes none above
            async with self._server.ask(self._path, self._probe(request, temperature)) as response:
                seen.append(self._second(await response.json()))
        if seen[0] == seen[1]:
            raise EngineRefused(
                f"{self._server.url} tells log-probabilities from before the temperature is applied: start it "
                f"{self._raw_logprobs}, or sample at temperature 1 with no other parameter that bends them"
            )
        self._processed = True

    async def _read(self, body: Message, reading: Answer) -> AsyncGenerator[Tokens]:
        call = reading.call
        async with AsyncExitStack() as stack:
            response = await call.wait(stack.enter_async_context(self._server.ask(self._path, body)))
            await self._see_weights()
            if response.content_type != "text/event-stream":
                yield reading.take(await call.wait(response.json()), self._version(reading))
                return
            stream = await stack.enter_async_context(aclosing(events(response)))
            while (event := await call.wait(anext(stream, None))) is not None:
                tokens = reading.take(event, self._version(reading))
                if tokens.ids:
                    yield tokens
