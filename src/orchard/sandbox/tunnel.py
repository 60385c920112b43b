"""Two-way streams of raw bytes to a sandbox: HTTP Upgrade, or WebSocket through a service."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from orchard.core.errors import from_problem
from orchard.sandbox.answers import check_identity, problem_of
from orchard.sandbox.sessions import DIRECT_CONNECT
from orchard.sandbox.types import Endpoint

CHUNK = 1 << 16
_HEAD_TIMEOUT = 75.0  # seconds until the answer to an Upgrade; a wait for a listener is at most 60
_REFUSALS = {
    400: "invalid_argument", 401: "unauthorized", 404: "not_found", 409: "conflict", 410: "sandbox_gone",
    422: "invalid_argument", 429: "rate_limited",
}  # fmt: skip
_WS_TIMEOUT = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue] - its fields are hidden from checkers


class Tunnel(Protocol):
    """A duplex stream of bytes with half-close."""

    async def read(self) -> bytes:
        """Return what has come, at least one byte; ``b""`` once the other side has ended its half."""
        ...

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side is slow."""
        ...

    async def write_eof(self) -> None:
        """End our half; reading goes on."""
        ...

    async def close(self) -> None:
        """End both halves, once what was written has gone out. Never fails."""
        ...

    def abort(self) -> None:
        """End both halves at once."""
        ...


class SocketTunnel:
    """A tunnel over a plain connection (after the Upgrade, or to a target dialled here)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._closed = False

    async def read(self) -> bytes:
        """As ``Tunnel.read``."""
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        """As ``Tunnel.write``."""
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        """As ``Tunnel.write_eof``."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self) -> None:
        """As ``Tunnel.close``."""
        self._writer.close()
        try:
            with suppress(OSError):
                await self._writer.wait_closed()
            self._closed = True
        finally:
            self.abort()

    def abort(self) -> None:
        """As ``Tunnel.abort``."""
        if not self._closed:  # a transport that has closed cannot be aborted any more
            self._closed = True
            self._writer.transport.abort()


class WebSocketTunnel:
    """A tunnel in binary frames; an empty frame is a half-close."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ended = False

    async def read(self) -> bytes:
        """As ``Tunnel.read``."""
        if self._ended:
            return b""
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            self._ended = not message.data
            return message.data
        self._ended = True
        if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING):
            return b""
        raise ConnectionResetError(f"the tunnel broke: {message.type.name}")

    async def write(self, data: bytes) -> None:
        """As ``Tunnel.write``."""
        if data:
            await self._socket.send_bytes(data)

    async def write_eof(self) -> None:
        """As ``Tunnel.write_eof``."""
        await self._socket.send_bytes(b"")

    async def close(self) -> None:
        """As ``Tunnel.close``."""
        await self._socket.close()

    def abort(self) -> None:
        """As ``Tunnel.abort``."""
        if (connection := self._socket._conn) is not None:  # pyright: ignore[reportPrivateUsage]
            connection.close()


async def open_tunnel(endpoint: Endpoint, base: str, url: URL, session: aiohttp.ClientSession) -> Tunnel:
    """Open a tunnel at ``url``; ``base`` says where to connect, ``session`` carries WebSockets.

    Raises:
        OrchardError: what the other side answered in place of the tunnel.
        OSError | aiohttp.ClientError: as the network says.
    """
    if endpoint.tunnel == "websocket":
        return await _open_websocket(endpoint, url, session)
    async with asyncio.timeout(DIRECT_CONNECT):
        reader, writer = await dial(base)
    try:
        lines = [f"GET {url.raw_path_qs} HTTP/1.1", f"Host: {url.raw_authority}", "Connection: Upgrade", "Upgrade: tcp"]
        lines += [f"{name}: {value}" for name, value in endpoint.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        async with asyncio.timeout(_HEAD_TIMEOUT):
            await _upgraded(reader, endpoint)
    except BaseException:
        writer.transport.abort()
        raise
    return SocketTunnel(reader, writer)


async def dial(base: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to ``unix:/path``, ``tcp:host:port`` or the host of a URL."""
    if base.startswith("unix:"):
        return await asyncio.open_unix_connection(base.removeprefix("unix:"))
    parts = urlsplit("tcp://" + base.removeprefix("tcp:") if base.startswith("tcp:") else base)
    secure = parts.scheme == "https"
    return await asyncio.open_connection(
        parts.hostname, parts.port or (443 if secure else 80), ssl=ssl.create_default_context() if secure else None
    )


async def _upgraded(reader: asyncio.StreamReader, endpoint: Endpoint) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ", 2)[1])
    headers = {name.strip().title(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    check_identity(headers, endpoint.sandbox_id, status)
    if status != 101:
        raise problem_of(status, headers, await reader.read(int(headers.get("Content-Length", CHUNK))))


async def _open_websocket(endpoint: Endpoint, url: URL, session: aiohttp.ClientSession) -> Tunnel:
    try:
        socket = await session.ws_connect(
            url,
            headers=dict(endpoint.headers),
            max_msg_size=0,
            heartbeat=20.0,
            timeout=_WS_TIMEOUT,
        )
    except aiohttp.WSServerHandshakeError as error:  # its status is all that is left of the answer
        if (code := _REFUSALS.get(error.status)) is None:
            raise
        reason = "connection_refused" if code == "not_found" else None
        raise from_problem({"code": code, "detail": f"the tunnel was refused: {error}", "reason": reason}) from error
    return WebSocketTunnel(socket)
