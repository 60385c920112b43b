"""Bytes carried between this machine and ports in a sandbox, both ways round."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from orchard.core.errors import InvalidArgument, NotFound, OrchardError, SandboxGone, Unavailable, text_of
from orchard.core.retry import Patience
from orchard.core.tasks import finish
from orchard.sandbox.answers import BROKEN, translated
from orchard.sandbox.transport import Call, Transport, query
from orchard.sandbox.tunnel import SocketTunnel, Tunnel, dial

IDLE = 4  # carriers that wait for a connection at least
MOST_IDLE = 64
_DIAL = 10.0  # seconds until the target counts as unreachable
_QUIET = 65.0  # seconds without a keep-alive (every 20) until a carrier counts as broken
_END = 5.0  # seconds that ending the listener inside may take
_CONNECTION, _KEEPALIVE = 1, 0

log = logging.getLogger(__name__)


def check_target(target: str) -> str:
    """Return where to dial, ``unix:/path`` or ``tcp:host:port``, for a target also given as an ``http://`` URL.

    Raises:
        InvalidArgument: it is none of these.
    """
    if target.startswith("unix:/"):
        return target
    parts = urlsplit("tcp://" + target.removeprefix("tcp:") if target.startswith("tcp:") else target)
    try:
        port = parts.port or (80 if parts.scheme == "http" else None)
    except ValueError:
        port = None
    if parts.scheme not in ("http", "tcp") or not parts.hostname or not port:
        raise InvalidArgument(
            f"target must be 'http://host:port', 'tcp:host:port' or 'unix:/path', not {target!r}", field="target"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"tcp:{host}:{port}"


def check_port(port: int, *, least: int = 1) -> int:
    """Return ``port`` if it is one.

    Raises:
        InvalidArgument: it is not.
    """
    if not least <= port <= 65535:
        raise InvalidArgument(f"port must be {least} to 65535, not {port!r}", field="port")
    return port


async def relay(one: Tunnel, other: Tunnel) -> None:
    """Copy both ways until both halves have ended, or one breaks; then close both."""
    halves = [asyncio.ensure_future(_copy(one, other)), asyncio.ensure_future(_copy(other, one))]
    try:
        await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
        if all(half.done() and half.exception() is None for half in halves):
            await asyncio.gather(one.close(), other.close())
    finally:
        one.abort()
        other.abort()
        for half in halves:
            half.cancel()
        await asyncio.gather(*halves, return_exceptions=True)


async def _copy(source: Tunnel, target: Tunnel) -> None:
    while data := await source.read():
        await target.write(data)
    await target.write_eof()


class Reverse:
    """A port inside the sandbox whose connections come out here. ``port`` is known once it listens."""

    def __init__(self, transport: Transport, port: int, target: str) -> None:
        self._transport, self._target = transport, check_target(target)
        self.port = check_port(port, least=0)
        self._idle = self._busy = 0
        self._group = asyncio.TaskGroup()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Reverse]:
        """Listen and carry until the block is left."""
        await self._listen()
        carrying = asyncio.ensure_future(self._carry_all())
        try:
            yield self
        finally:
            carrying.cancel()
            await finish(self._end(carrying))

    async def _listen(self) -> None:
        reply = await self._transport.request(Call("POST", f"/reverse/{self.port}"))
        self.port = int(reply.json()["port"])

    async def _end(self, carrying: asyncio.Future[None]) -> None:
        await asyncio.wait([carrying])
        if not carrying.cancelled() and (error := carrying.exception()) is not None:
            log.error("reverse port %d stopped carrying", self.port, exc_info=error)
        with suppress(OrchardError, TimeoutError):
            async with asyncio.timeout(_END):
                await self._transport.request(Call("DELETE", f"/reverse/{self.port}", applied=NotFound))

    async def _carry_all(self) -> None:
        async with self._group:
            self._fill()
            await asyncio.get_running_loop().create_future()  # until cancelled: the pool may be empty for a moment

    def _fill(self) -> None:
        """Keep as many carriers waiting as a quarter of those at work, so that a burst finds one each."""
        while self._idle < min(MOST_IDLE, IDLE + self._busy // 4):
            self._idle += 1
            self._group.create_task(self._carry())

    async def _carry(self) -> None:
        """Wait for one connection, through broken carriers, and serve it."""
        patience = Patience(float("inf"))
        while True:
            try:
                tunnel = await self._wait(patience)
                break
            except SandboxGone:
                self._idle -= 1
                return  # whoever uses the sandbox next learns the reason
            except NotFound:
                with suppress(Unavailable):
                    await self._listen()
                await patience.pause(Unavailable("the port inside is gone"))
            except OrchardError as error:
                log.warning("a carrier of port %d broke, opening another: %s", self.port, error)
                await patience.pause(error)
        self._idle -= 1
        self._busy += 1
        self._fill()
        try:
            await self._serve(tunnel)
        finally:
            self._busy -= 1

    async def _wait(self, patience: Patience) -> Tunnel:
        tunnel = await self._transport.tunnel(Call("GET", f"/reverse/{self.port}/carry"))
        try:
            while True:
                with translated():
                    async with asyncio.timeout(_QUIET):
                        data = await tunnel.read()
                if not data:
                    raise Unavailable("a carrier was closed while it waited", reason=BROKEN)
                data = data.lstrip(bytes([_KEEPALIVE]))
                if data == bytes([_CONNECTION]):
                    with translated():
                        await tunnel.write(data)  # taken: until this arrives, sandboxd keeps the connection
                    return tunnel
                patience.reset()
                if data:
                    raise Unavailable("a carrier said something unknown", reason=BROKEN)
        except BaseException:
            tunnel.abort()
            raise

    async def _serve(self, tunnel: Tunnel) -> None:
        try:
            if (outside := await self._dial()) is not None:
                with suppress(OSError):
                    await relay(tunnel, outside)
        finally:
            tunnel.abort()

    async def _dial(self) -> Tunnel | None:
        try:
            async with asyncio.timeout(_DIAL):
                return SocketTunnel(*await dial(self._target))
        except (OSError, TimeoutError) as error:
            log.warning("port %d: the target %s does not answer: %s", self.port, self._target, text_of(error))
            return None


@asynccontextmanager
async def forwarded(transport: Transport, port: int, local_port: int) -> AsyncGenerator[int]:
    """Listen on this machine's loopback; carry each connection to ``port`` in the sandbox. Yields the local port."""
    check_port(port)
    check_port(local_port, least=0)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, outside = asyncio.current_task(), SocketTunnel(reader, writer)
        assert task is not None
        tasks.add(task)
        try:
            if server.is_serving():  # else it was accepted while the block was left
                await relay(outside, await open_port(transport, port, None))
        except (OrchardError, OSError) as error:
            log.warning("a connection to port %d in the sandbox failed: %s", port, text_of(error))
        finally:
            outside.abort()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", local_port, start_serving=False)
    try:
        await server.start_serving()  # a cancel in here closes it
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await finish(_all(tasks))


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def open_port(transport: Transport, port: int, wait: float | None) -> Tunnel:
    """Open a duplex stream to a port in the sandbox."""
    return await transport.tunnel(Call("GET", f"/ports/{check_port(port)}", query(wait=wait)))
