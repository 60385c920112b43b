"""``/v1/sandboxes/{id}/proxy/{port}/...``: an HTTP and WebSocket proxy to a port in the sandbox.

Transparent: paths, methods, encodings, event streams and bodies pass as they are, and redirects are not followed. Each
request has a tunnel of its own, so that nothing idle keeps a sandbox awake.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from orchard.core.errors import InvalidArgument, NotFound, Unavailable
from orchard.core.tasks import cancel
from orchard.service.problems import send_plain
from orchard.service.relay import Disconnected, Relay, Request, forwarded, returned, send_head, send_in
from orchard.service.server import has_left
from orchard.service.tunnels import Tunnels
from orchard.service.upstream import Answer, Connection, Headers

_OURS = frozenset({b"host", b"x-orchard-key", b"orchard-request-id", b"orchard-sandbox"})
_WS_HEADERS = frozenset({b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"})
_CHUNK = 1 << 16
_MOST_MESSAGE = 1 << 26  # bytes of one WebSocket message from the sandbox
_SENDABLE = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})


class PortProxy:
    """Proxies HTTP and WebSocket requests to ports in sandboxes."""

    def __init__(self, tunnels: Tunnels, relay: Relay) -> None:
        self._tunnels, self._relay = tunnels, relay

    async def handle(self, request: Request) -> None:
        """Relay one HTTP request or WebSocket; ``request.rest`` is ``/proxy/PORT/PATH``.

        Raises:
            InvalidArgument: no port.
            Unavailable: ``reason`` ``connection_refused``: nothing listens there.
            OrchardError: as the sandbox, or the backend, says.
            Disconnected: the client has gone.
        """
        port, path = _split(request.rest)
        query = request.scope["query_string"]
        target = path + (b"?" + query if query else b"")
        connection = await self._open(request, port)
        try:
            headers = _request_headers(request, port)
            if request.scope["type"] == "websocket":
                await _websocket(request, connection, target, headers)
            else:
                headers.append((b"Connection", b"close"))
                await self._relay.converse(request, connection, target, headers, _passed)
        finally:
            connection.abort()

    async def _open(self, request: Request, port: int) -> Connection:
        try:
            return await self._tunnels.open(request, b"/ports/%d" % port)
        except NotFound as error:
            if error.reason != "connection_refused":
                raise
            raise Unavailable(
                f"nothing listens on port {port} of the sandbox", reason="connection_refused",
                hint="start the server in the sandbox on 127.0.0.1 or 0.0.0.0 first",
            ) from error  # fmt: skip


def _split(rest: bytes) -> tuple[int, bytes]:
    port, slash, path = rest.removeprefix(b"/proxy/").partition(b"/")
    if not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise InvalidArgument(f"port must be 1-65535, not {port.decode('latin-1')!r}", field="port")
    return int(port), slash + path if slash else b"/"


def _request_headers(request: Request, port: int) -> Headers:
    """The client's headers, and where it came from; our key is left out, another Authorization passes."""
    given: Headers = request.scope["headers"]
    without = _OURS if _has(given, b"x-orchard-key") else _OURS | {b"authorization"}
    host = next((value for name, value in given if name == b"host"), b"")
    secure = request.scope["scheme"] in ("https", "wss")
    headers: Headers = [
        (b"Host", b"localhost:%d" % port),
        (b"X-Forwarded-Host", host),
        (b"X-Forwarded-Proto", b"https" if secure else b"http"),
        (b"X-Forwarded-Prefix", b"/v1/sandboxes/%b/proxy/%d" % (request.sandbox_id.encode(), port)),
    ]
    return headers + forwarded(given, without)


def _passed(answer: Answer) -> Headers:
    return returned(answer)


def _has(headers: Headers, wanted: bytes) -> bool:
    return any(name == wanted for name, _ in headers)


async def _websocket(request: Request, connection: Connection, target: bytes, headers: Headers) -> None:
    kept = [pair for pair in headers if pair[0].lower() not in _WS_HEADERS]
    kept += [
        (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), (b"Sec-WebSocket-Version", b"13"),
        (b"Sec-WebSocket-Key", base64.b64encode(secrets.token_bytes(16))),
    ]  # fmt: skip
    await send_head(connection, "GET", target, kept)
    answer = await connection.read_head()
    if answer.status != 101:
        await _refuse(request, connection, answer)
        return
    await request.receive()  # websocket.connect
    chosen = answer.get(b"sec-websocket-protocol")
    await request.send({"type": "websocket.accept", "subprotocol": chosen.decode("latin-1") if chosen else None})
    await _Frames(request, connection).relay()


async def _refuse(request: Request, connection: Connection, answer: Answer) -> None:
    body = await connection.beginning(_CHUNK)
    headers = [pair for pair in returned(answer) if pair[0] != b"content-length"]
    headers.append((b"content-length", b"%d" % len(body)))
    await send_plain(request.scope, request.send, answer.status, headers, body)


class _Frames:
    """Carries messages between a client's WebSocket and the one towards the sandbox, with their close codes."""

    def __init__(self, request: Request, connection: Connection) -> None:
        self._request, self._connection = request, connection
        self._protocol = Protocol(Side.CLIENT, state=State.OPEN, max_size=_MOST_MESSAGE)
        self._parts: list[bytes] = []
        self._text = False

    async def relay(self) -> None:
        """Return once either side has closed, and the other was told."""
        tasks = [asyncio.create_task(self._to_sandbox()), asyncio.create_task(self._to_client())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[1].done() and not has_left(self._request.scope):
                await self._close_client()
        finally:
            await cancel(*tasks)
        await self._connection.drained()

    async def _close_client(self) -> None:
        told = self._protocol.close_rcvd
        code, reason = (told.code, told.reason) if told else (1011, "the connection broke")
        if code not in _SENDABLE:
            code = 1000  # 1005: it was closed without a code
        await self._request.send({"type": "websocket.close", "code": code, "reason": reason})

    async def _to_client(self) -> None:
        while True:
            data = await self._connection.reader.read(_CHUNK)
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            await self._flush()
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    await self._forward(event)
            if not data or self._protocol.close_rcvd is not None:
                return

    async def _forward(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._parts, self._text = [], frame.opcode is Opcode.TEXT
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        whole = b"".join(self._parts)
        message: dict[str, Any] = {"text": whole.decode("utf-8", "replace")} if self._text else {"bytes": whole}
        await self._request.send({"type": "websocket.send", **message})

    async def _to_sandbox(self) -> None:
        while True:
            message = await self._request.receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code", 1005)
                if code in _SENDABLE:
                    self._protocol.send_close(code, message.get("reason") or "")
                else:
                    self._protocol.send_close()
                await self._flush()
                raise Disconnected
            if message.get("text") is not None:
                self._protocol.send_text(message["text"].encode())
            else:
                self._protocol.send_binary(message["bytes"])
            await self._flush()

    async def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                await send_in(self._request, self._connection, data)
            else:
                self._connection.writer.write_eof()
