"""One model server over HTTP: its connections, its JSON and events, and what its failures are called here."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp

from orchard.core.connections import that_end
from orchard.gateway.errors import EngineRefused, EngineUnavailable
from orchard.trajectories.messages import Message

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say; the same value as vLLM's."""
_LINE_BYTES = 64 << 20
_LATER = (408, 425, 429)
_KEEP_SECONDS = 4.0
"""Of idle connections: uvicorn, which serves most models, closes them after 5 s, and a request could meet that."""


class ModelServer:
    """A server that is asked by POST and answers JSON, or server-sent events.

    Args:
        url: what every path is appended to.
        answers: what its answers are, for messages: ``a chat completion``.
        api_key: sent as bearer; never recorded.
        read_seconds: longest silence of the server before it counts as away.
    """

    def __init__(self, url: str, *, answers: str, api_key: str = "", read_seconds: float = 900.0) -> None:
        self.url, self._answers = url.rstrip("/"), answers
        key = api_key.strip()  # files of secrets end in a new line
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=read_seconds)
        self._http: aiohttp.ClientSession | None = None
        self.connections = 0
        """How many were made so far. A server that was started anew is never reached by an old one."""

    @asynccontextmanager
    async def ask(self, path: str, body: Any = None, *, method: str = "POST") -> AsyncGenerator[aiohttp.ClientResponse]:
        """Give the server's answer, of status 200, to a block that reads it.

        Raises:
            EngineUnavailable: the server is away, overloaded or broke off, or the block found another shape than
                it reads; it may be tried again.
            EngineRefused: the server calls the request wrong.
        """
        url = self.url + path
        try:
            async with self._client().request(method, url, json=body) as response:
                if response.status != 200:
                    raise failure(response.status, response.headers.get("Retry-After"), await response.read())
                yield response
        except EngineUnavailable:
            raise
        except (AttributeError, KeyError, IndexError, TypeError) as error:  # of JSON in another shape than we read
            raise EngineUnavailable(f"what {url} answers is not {self._answers}: {error!r}") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            raise EngineUnavailable(f"the model server at {url} broke off: {error!r}") from error

    async def call(self, path: str, body: Any = None, *, method: str = "POST") -> Message:
        """Return the server's answer as an object; ``{}`` where it is none.

        Raises:
            EngineUnavailable, EngineRefused: see ``ask``.
        """
        async with self.ask(path, body, method=method) as response:
            facts = await response.json() if response.content_type == "application/json" else None
        return cast("Message", facts) if isinstance(facts, dict) else {}

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(self._connected)
            self._http = aiohttp.ClientSession(
                trace_configs=[trace],
                headers=self._headers,
                timeout=self._timeout,
                connector=that_end(aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS)),
                read_bufsize=1 << 20,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    async def _connected(self, *_: object) -> None:
        self.connections += 1


async def events(response: aiohttp.ClientResponse) -> AsyncGenerator[Message]:
    """Yield the JSON of each server-sent event; lines may be of any length up to a bound.

    Raises:
        EngineUnavailable, EngineRefused: the event says that the server failed, or refuses.
    """
    rest = b""
    async for block in response.content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise EngineUnavailable("the model server sent an event without end")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                facts = json.loads(data)
                if facts.get("error"):
                    raise _failure_event(facts)
                yield facts


def failure(status: int, retry_after: str | None, body: bytes) -> EngineRefused | EngineUnavailable:
    """Return what an answer of a status other than 200 is called here."""
    message = f"the model server answered {status}: {body[:2000].decode(errors='replace')}"
    if status >= 500 or status in _LATER:
        return EngineUnavailable(message, retry_after=_seconds(retry_after))
    try:
        facts = json.loads(body)
    except ValueError:
        facts = None
    return EngineRefused(message, http_status=status, body=cast("Message", facts) if isinstance(facts, dict) else None)


def logprob(value: Any) -> float:
    """Return a log-probability that JSON can say."""
    number = float(value) if value is not None else LOWEST_LOGPROB
    return number if math.isfinite(number) else LOWEST_LOGPROB


def _failure_event(facts: Message) -> EngineRefused | EngineUnavailable:
    """A server that fails in mid-stream says so in an event; some put an HTTP status into its code."""
    error = facts["error"]
    code = cast("Message", error).get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code not in _LATER:
        return EngineRefused(f"the model server refused: {error}", http_status=code, body=facts)
    return EngineUnavailable(f"the model server failed: {error}")


def _seconds(retry_after: str | None) -> float | None:
    """``Retry-After`` may also be a date, which is left aside: our own pauses do."""
    return float(retry_after) if retry_after and retry_after.isdigit() else None
