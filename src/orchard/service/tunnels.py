"""Relays tunnels: WebSocket (binary frames, an empty one is half-close) on one side, HTTP Upgrade on the other.

Nothing is ever dialled here but the sandbox: what is behind a reverse tunnel is dialled by who opened it.
"""

from __future__ import annotations

import asyncio

from orchard.core.errors import Unavailable, from_problem
from orchard.core.tasks import cancel
from orchard.service.datapath import DataPath, check_identity, read_problem
from orchard.service.directory import Entry
from orchard.service.relay import Disconnected, Request, promptly, send_head, send_in
from orchard.service.server import has_left
from orchard.service.upstream import Connection

_CHUNK = 1 << 16
_OPEN_SECONDS = 15.0  # until a tunnel counts as lost; sandboxd dials two addresses for five seconds each
_WAIT_SECONDS = 60.0  # that sandboxd waits for a listener at most, if it is asked to


class Tunnels:
    """Opens and relays tunnels to sandboxes."""

    def __init__(self, datapath: DataPath) -> None:
        self._datapath = datapath

    async def handle(self, request: Request) -> None:
        """Relay one WebSocket whose path is a tunnel of the wire.

        Raises:
            OrchardError: the tunnel was refused; nothing was accepted yet.
        """
        connection = await self.open(request, request.rest, request.scope["query_string"])
        try:
            await request.receive()  # websocket.connect
            await request.send({"type": "websocket.accept"})
            await _relay(request, connection)
        finally:
            connection.abort()

    async def open(self, request: Request, path: bytes, query: bytes = b"") -> Connection:
        """Return a connection that is a tunnel: ``path`` is ``/ports/8000`` or ``/reverse/8000/carry``.

        Raises:
            OrchardError: as the sandbox, or the backend, says.
        """
        entry, connection = await self._datapath.reach(request.sandbox_id, request.caller)
        try:
            async with promptly(_OPEN_SECONDS + (_WAIT_SECONDS if query else 0.0)):
                await _upgrade(connection, entry, b"/v1" + path + (b"?" + query if query else b""), request.request_id)
        except Unavailable as error:
            connection.abort()
            await self._datapath.lost(entry, error)
        except BaseException:
            connection.abort()
            raise
        return connection


async def _upgrade(connection: Connection, entry: Entry, target: bytes, request_id: str) -> None:
    headers = [(b"Host", b"sandbox"), (b"Connection", b"Upgrade"), (b"Upgrade", b"tcp")]
    headers += [(b"Orchard-Request-Id", request_id.encode()), *entry.headers]
    await send_head(connection, "GET", target, headers)
    answer = await connection.read_head()
    check_identity(answer, entry)
    if answer.status == 101:
        return
    raise from_problem(await read_problem(connection, answer))


async def _relay(request: Request, connection: Connection) -> None:
    """Carry bytes both ways until both halves have ended, or one side is gone; a half that has ended arrives whole."""
    ended = asyncio.Event()
    inward = asyncio.create_task(_to_sandbox(request, connection, ended))
    both = asyncio.create_task(_to_client(request, connection, ended))
    try:
        await asyncio.wait([both, inward], return_when=asyncio.FIRST_COMPLETED)
        first = inward if inward.done() else both
        broken = first.exception()
        if not isinstance(broken, Disconnected) and not has_left(request.scope):
            await request.send({"type": "websocket.close", "code": 1000 if broken is None else 1011})
        if ended.is_set():
            await connection.drained()
    finally:
        await cancel(both, inward)


async def _to_client(request: Request, connection: Connection, ended: asyncio.Event) -> None:
    """Carry bytes out; return once the other half has ended too."""
    while True:
        data = await connection.reader.read(_CHUNK)
        await request.send({"type": "websocket.send", "bytes": data})
        if not data:
            await ended.wait()
            return


async def _to_sandbox(request: Request, connection: Connection, ended: asyncio.Event) -> None:
    """Carry bytes in; goes on after the half-close, to learn that the client has gone.

    Raises:
        Disconnected: it has.
    """
    while True:
        message = await request.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        data = message.get("bytes")
        if data is None:
            raise ConnectionError("a tunnel carries binary frames only")
        if data and not ended.is_set():
            await send_in(request, connection, data)
        elif not data:
            ended.set()
            connection.writer.write_eof()
