"""A gateway behind something that fails on purpose: each model request of a harness meets the next of a list of faults.

``conformance.faulty`` does so to connections, and a harness keeps one for many requests; so this one knows HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from aiohttp import web

from orchard.gateway import Delta, Engine, EngineRequest, Gateway, Session
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.engine import Part
from orchard.trajectories import Store


@dataclass(frozen=True)
class Status:
    """Answer this in place of the gateway."""

    code: int
    headers: tuple[tuple[str, str], ...] = ()


Fault = Status | Literal["drop", "cut"] | None
"""``drop`` closes the connection instead of an answer, ``cut`` breaks one off in its middle, None passes it on."""
EACH: tuple[Fault, ...] = (
    Status(500), None, Status(429, (("Retry-After", "1"),)), None, "drop", None, "cut",
)  # fmt: skip
"""A fault for the first try of each of four calls; later requests pass."""


class Slow:
    """An engine that waits after each delta of an answer that will be cut, so that it is cut before its end."""

    policy_version = None

    def __init__(self, inner: Engine) -> None:
        self._inner, self.name = inner, inner.name
        self.pause = 0.0

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        pause = self.pause if request.stream else 0.0
        async with aclosing(self._inner.complete(request)) as parts:
            async for part in parts:
                yield part
                if pause and isinstance(part, Delta):
                    await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._inner.close()


class Harassed(Gateway):
    """A gateway whose sessions are reached through the faults."""

    def __init__(self, store: Store, faults: Sequence[Fault], slow: Slow | None = None) -> None:
        super().__init__(store, {})
        self._faults, self._slow, self.met = list(faults), slow, list[Fault]()
        self._door = ""
        self._true: dict[str, str] = {}

    async def __aenter__(self) -> Harassed:
        await super().__aenter__()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._proxy = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._proxy.setup()
        await web.TCPSite(self._proxy, "127.0.0.1", 0).start()
        self._door = f"http://127.0.0.1:{self._proxy.addresses[0][1]}"
        self._http = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._http.close()
        await self._proxy.cleanup()
        await super().__aexit__(*error)

    async def open_session(self, *args: Any, **options: Any) -> Session:
        session = await super().open_session(*args, **options)
        self._true[session.id] = session.target
        session.url, session.target = f"{self._door}/s/{session.id}", self._door
        return session

    async def close_session(self, session: Session) -> None:
        session.target = self._true.get(session.id, session.target)
        await super().close_session(session)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        asks = request.method == "POST" and any(request.path.endswith(path) for path in DIALECTS)
        fault = self._faults.pop(0) if asks and self._faults else None
        if fault is not None:
            self.met.append(fault)
        if isinstance(fault, Status):
            body = {"type": "error", "error": {"type": "api_error", "message": "on purpose", "code": None}}
            return web.json_response(body, status=fault.code, headers=dict(fault.headers))
        data = await request.read()
        if fault == "drop":
            _abort(request)
            return web.Response()
        if self._slow is not None:
            self._slow.pause = 60.0 if fault == "cut" else 0.0
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        url = f"{self.url}{request.raw_path}"
        async with self._http.request(request.method, url, data=data, headers=headers) as got:
            return await _copied(request, got, cut=fault == "cut")


async def _copied(request: web.Request, got: aiohttp.ClientResponse, *, cut: bool) -> web.StreamResponse:
    """Pass an answer on; ``cut`` breaks it off after its first piece, or after half of one that comes whole."""
    response = web.StreamResponse(status=got.status, headers=got.headers)
    await response.prepare(request)
    async for piece in got.content.iter_any():
        if cut:
            streamed = got.content_type == "text/event-stream"
            await response.write(piece if streamed else piece[: len(piece) // 2])
            _abort(request)
            return response
        await response.write(piece)
    await response.write_eof()
    return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
