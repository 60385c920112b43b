"""A proxy in front of a Unix socket or TCP address that misbehaves on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 11\r\nConnection: close\r\n\r\nbad gateway"
)


@dataclass(frozen=True)
class Fault:
    """What befalls one connection. Numbers are bytes; None is never."""

    cut_request: int | None = None
    """Break both ways once so many bytes of requests have passed."""
    cut_answer: int | None = None
    """Break both ways once so many bytes of answers have passed."""
    bad_gateway: bool = False
    """Let the request through, and answer 502 in its place."""
    refuse: bool = False
    """Close at once."""
    delay: float = 0.0
    """Seconds before each piece of an answer."""
    duplicate: bool = False
    """Send the request a second time over another connection, and drop that answer."""


NONE = Fault()


class Faulty:
    """The running proxy; ``choose`` gives the fault of each new connection by its number."""

    def __init__(self, target: str, choose: Callable[[int], Fault]) -> None:
        self.target, self.choose, self.connections = target, choose, 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.startswith("unix:"):
            return await asyncio.open_unix_connection(self.target.removeprefix("unix:"))
        host, _, port = self.target.removeprefix("http://").rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self.choose(self.connections)
        self.connections += 1
        writers = [writer]
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            if not fault.refuse:
                await self._pass(fault, reader, writer, writers)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in writers:
                one.transport.abort()

    async def _pass(
        self,
        fault: Fault,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        upstream, up_writer = await self.dial()
        ups = [up_writer]
        if fault.duplicate:
            twin, twin_writer = await self.dial()
            ups.append(twin_writer)
            drain = asyncio.ensure_future(copy(twin, [], None, 0.0))
            drain.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        writers += ups
        back: list[asyncio.StreamWriter] = [] if fault.bad_gateway else [writer]
        halves = [
            asyncio.ensure_future(copy(reader, ups, fault.cut_request, 0.0)),
            asyncio.ensure_future(copy(upstream, back, 1 if fault.bad_gateway else fault.cut_answer, fault.delay)),
        ]
        await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)  # a cut, or both have ended
        if fault.bad_gateway:
            writer.write(BAD_GATEWAY)
            await writer.drain()
            writer.close()
            writers.remove(writer)
        for half in halves:
            half.cancel()
        await asyncio.gather(*halves, return_exceptions=True)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def copy(
    reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter], limit: int | None, delay: float
) -> None:
    """Copy until EOF and hand that on; break off once ``limit`` bytes have passed."""
    passed = 0
    while limit is None or passed < limit:
        data = await reader.read(1 << 16 if limit is None else min(1 << 16, limit - passed))
        if not data:
            for writer in writers:
                writer.write_eof()
            return
        passed += len(data)
        if delay:
            await asyncio.sleep(delay)
        for writer in writers:
            writer.write(data)
            await writer.drain()
    raise ConnectionAbortedError("cut")


@asynccontextmanager
async def faulty(target: str, choose: Callable[[int], Fault], path: Path) -> AsyncIterator[tuple[Faulty, str]]:
    """Run a proxy to ``target`` at a Unix socket; yield it and its own ``unix:`` address."""
    proxy = Faulty(target, choose)
    server = await asyncio.start_unix_server(proxy.serve, str(path))
    try:
        yield proxy, f"unix:{path}"
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
