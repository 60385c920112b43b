"""A backend that breaks one thing on purpose: what the conformance suite must notice.

The data path goes through an HTTP proxy whose hooks may change what is asked and what is answered; the control path
through a wrapper. Tunnels pass as WebSockets, as they do through a service.
"""

from __future__ import annotations

import asyncio
import io
import json
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes

import aiohttp
from aiohttp import web
from yarl import URL

from orchard.core.errors import NotFound
from orchard.sandbox.conformance import Context
from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.frames import Frame, FrameDecoder, Kind
from orchard.sandbox.protocol import Backend
from orchard.sandbox.relay import relay
from orchard.sandbox.tunnel import WebSocketTunnel, open_tunnel
from orchard.sandbox.types import Endpoint

Ask = Callable[[str, str, Any], Awaitable[None]]
"""Sends a further request to the same sandbox: method, path, JSON."""
LARGE = 1 << 26
"""Bytes: a longer answer passes unchanged, so that none is held in memory."""
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "date", "server"}


def command(spec: dict[str, Any]) -> str:
    """The text of a command, whichever way it was given."""
    return spec.get("shell") or " ".join(spec.get("argv", ()))


@dataclass
class Twin:
    """What one twin breaks. Each hook is optional."""

    line: int
    breaks: str
    start: Callable[[dict[str, Any]], None] | None = None
    """Changes the body of a new process."""
    started: Callable[[dict[str, Any], Ask], Awaitable[None]] | None = None
    """Does something more once it runs."""
    frame: Callable[[dict[str, Any], Frame], Iterable[Frame]] | None = None
    """Changes a frame of a new process's stream."""
    request: Callable[[str, str, str], str | int | None] | None = None
    """From method, path with query and sandbox id: another path, or a status to answer instead."""
    answer: Callable[[str, str, int, bytes], tuple[int, bytes]] | None = None
    """Changes a whole answer (never a stream)."""
    answers: tuple[str, ...] = ()
    """Path prefixes of the answers that are changed."""
    gate: Callable[[dict[str, Any]], Any] | None = None
    """An asynchronous context in which the process's whole stream runs."""
    wrap: Callable[[Backend], Wrapped] = Wrapped
    """The control path."""
    before: str = ""
    """Python code that other processes which reach the backend run first."""
    patch: tuple[str, Any] | None = None
    """Dotted name in the client, and what stands there instead."""


class _Accepted(WebSocketTunnel):
    """The server's side of a tunnel; aiohttp ends its connection with the handler."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        super().__init__(cast("aiohttp.ClientWebSocketResponse", socket))

    def abort(self) -> None:
        """See above."""


class Proxy:
    """Forwards each request to the sandbox that its header names, through the hooks of a twin."""

    def __init__(self, inner: Backend, twin: Twin) -> None:
        self._inner, self._twin = inner, twin
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._specs: dict[str, dict[str, Any]] = {}

    async def _session(self, sandbox_id: str) -> tuple[aiohttp.ClientSession, Endpoint]:
        endpoint = await self._inner.endpoint(sandbox_id)
        if endpoint.base not in self._sessions:
            path = endpoint.base.removeprefix("unix:")
            self._sessions[endpoint.base] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path, limit=0), auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )  # fmt: skip
        return self._sessions[endpoint.base], endpoint

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        twin, target = self._twin, request.raw_path
        session, endpoint = await self._session(request.headers["Orchard-Sandbox"])
        if twin.request is not None:
            text = unquote_to_bytes(target).decode("utf-8", "replace")
            changed = twin.request(request.method, text, endpoint.sandbox_id)
            if isinstance(changed, int):
                return web.Response(status=changed, headers={"Orchard-Sandbox": endpoint.sandbox_id})
            target = changed or target
        if "Sec-WebSocket-Key" in request.headers:
            return await self._tunnel(request, session, target, endpoint)
        spec: dict[str, Any] = {}
        data: Any = request.content if request.can_read_body else None
        if request.method == "POST" and request.path == "/v1/processes":
            spec = json.loads(await request.read())
            self._specs[spec["id"]] = spec
            if twin.start is not None:
                twin.start(spec)
            data = io.BytesIO(json.dumps(spec).encode())
        known = self._specs.get(request.path.removeprefix("/v1/processes/").partition("/")[0], {})
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP} | dict(
            endpoint.headers
        )
        if "Content-Length" in request.headers and not spec:
            headers["Content-Length"] = request.headers["Content-Length"]
        gate = twin.gate(spec) if twin.gate is not None and spec else None
        if gate is None:
            return await self._forward(request, session, target, data, headers, spec, known)
        async with gate:
            return await self._forward(request, session, target, data, headers, spec, known)

    @staticmethod
    async def _tunnel(
        request: web.Request, session: aiohttp.ClientSession, target: str, endpoint: Endpoint
    ) -> web.StreamResponse:
        try:
            there = await open_tunnel(endpoint, endpoint.base, URL("http://sandboxd" + target, encoded=True), session)
        except NotFound:
            return web.Response(status=404, headers={"Orchard-Sandbox": endpoint.sandbox_id})
        here = web.WebSocketResponse(max_msg_size=0)
        try:
            await here.prepare(request)
            await relay(_Accepted(here), there)
        finally:
            there.abort()
        return here

    async def _forward(
        self, request: web.Request, session: aiohttp.ClientSession, target: str, data: Any,
        headers: dict[str, str], spec: dict[str, Any], known: dict[str, Any],
    ) -> web.StreamResponse:  # fmt: skip
        url = URL("http://sandboxd" + target, encoded=True)
        async with session.request(request.method, url, data=data, headers=headers, allow_redirects=False) as upstream:
            if spec and self._twin.started is not None and upstream.status in (200, 201):
                await self._twin.started(spec, self._asker(session, headers))
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP}
            framed = "frames" in upstream.content_type
            passes = framed or (upstream.content_length or 0) > LARGE
            if self._twin.answer is not None and request.path.startswith(self._twin.answers) and not passes:
                path = unquote_to_bytes(target).decode("utf-8", "replace")
                status, body = self._twin.answer(request.method, path, upstream.status, await upstream.read())
                return web.Response(status=status, body=body, headers=kept)
            response = web.StreamResponse(status=upstream.status, headers=kept)
            if upstream.content_length is not None and self._twin.frame is None:
                response.content_length = upstream.content_length
            await response.prepare(request)
            decoder = FrameDecoder() if self._twin.frame is not None and framed else None
            async for chunk in upstream.content.iter_any():
                await response.write(self._frames(decoder, spec or known, chunk) if decoder else chunk)
            await response.write_eof()
            return response

    def _frames(self, decoder: FrameDecoder, spec: dict[str, Any], chunk: bytes) -> bytes:
        assert self._twin.frame is not None
        frames = (out for frame in decoder.feed(chunk) for out in self._twin.frame(spec, frame))
        return b"".join(struct.pack(">BQI", one.kind, one.offset, len(one.payload)) + one.payload for one in frames)

    @staticmethod
    def _asker(session: aiohttp.ClientSession, headers: dict[str, str]) -> Ask:
        kept = {name: value for name, value in headers.items() if name.lower() != "content-length"}

        async def ask(method: str, path: str, body: Any) -> None:
            async with session.request(method, "http://sandboxd" + path, json=body, headers=kept) as response:
                assert response.status < 400, await response.text()

        return ask


class ThroughProxy(Wrapped):
    """Leads the data path through the twin's proxy."""

    def __init__(self, inner: Backend, socket: Path) -> None:
        super().__init__(inner)
        self._socket = socket

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """An address of its own for each sandbox, as the backend itself gives."""
        endpoint = await self.inner.endpoint(sandbox_id)
        address = self._socket.with_name(sandbox_id)
        if not address.is_symlink():
            address.symlink_to(self._socket)
        return replace(endpoint, base=f"unix:{address}", tunnel="websocket")


@dataclass
class TwinContext(Context):
    """What the checks work with under a twin."""

    before: str = ""

    async def python(self, code: str) -> asyncio.subprocess.Process:
        """As ``Context.python``, after the twin's code."""
        return await super().python(f"{self.before}\n{code}")


@asynccontextmanager
async def twin_of(inner: Backend, twin: Twin, folder: Path) -> AsyncGenerator[Backend]:
    """Yield the twin of a backend; its proxy's socket lies in ``folder``."""
    broken = twin.wrap(inner)
    proxy = Proxy(broken, twin)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(folder / "t.sock")).start()
        yield ThroughProxy(broken, folder / "t.sock")
    finally:
        await proxy.close()
        await runner.cleanup()


def exit_facts(frame: Frame, **facts: Any) -> Frame:
    """An exit frame with other facts."""
    return replace(frame, payload=json.dumps(json.loads(frame.payload) | facts).encode())


def is_exit(frame: Frame) -> bool:
    return frame.kind == Kind.EXIT
