"""A proxy between client and sandbox that cuts, delays, and answers 502, as networks and load balancers do."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.protocol import Backend
from orchard.sandbox.types import Endpoint

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops"


class FaultyProxy:
    """Forwards connections to one address and breaks a share of them.

    Args:
        target: ``unix:/path`` or ``http://host:port``.
        cut_after: bytes of an answer after which a faulty connection is cut, from and to; None: no faults at all.
        heal: every second connection works; without, every one is cut.
        seed: of the choice of faults.
    """

    def __init__(self, target: str, *, cut_after: tuple[int, int] | None, heal: bool = True, seed: int = 7) -> None:
        self._target, self._cut_after, self._heal = target, cut_after, heal
        self._random = random.Random(seed)
        self._count = 0
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection, with or without a fault."""
        task = asyncio.current_task()
        if task:
            self._open.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            if task:
                self._open.discard(task)

    def cut_all(self) -> None:
        """Cut every connection that is open now."""
        for task in list(self._open):
            task.cancel()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        fault = self._random.choice(("cut answer", "cut request", "502", "502 after", "delay"))
        if self._cut_after is None or (self._heal and self._count % 2 == 0):
            fault = "none"
        elif not self._heal:
            fault = "cut answer"
        if fault == "502":
            writer.write(BAD_GATEWAY)
            await writer.drain()
            return
        if fault == "delay":
            await asyncio.sleep(0.05)
        up_reader, up_writer = await self._dial()
        bytes_back = self._random.randint(*self._cut_after) if fault == "cut answer" and self._cut_after else None
        bytes_there = self._random.randint(0, 200) if fault == "cut request" else None
        forward = asyncio.ensure_future(_copy(reader, up_writer, bytes_there))
        back = asyncio.ensure_future(
            _swallow(up_reader, writer) if fault == "502 after" else _copy(up_reader, writer, bytes_back)
        )
        try:
            await asyncio.wait({forward, back}, return_when=asyncio.FIRST_COMPLETED)
            if forward.done() and bytes_there is None:
                await back
        finally:
            forward.cancel()
            back.cancel()
            await asyncio.gather(forward, back, return_exceptions=True)
            up_writer.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("unix:"):
            return await asyncio.open_unix_connection(self._target.removeprefix("unix:"))
        parts = urlsplit(self._target)
        return await asyncio.open_connection(parts.hostname, parts.port or 80)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    while data := await reader.read(65536):
        if limit is not None and len(data) >= limit:
            writer.write(data[:limit])
            await writer.drain()
            return
        limit = None if limit is None else limit - len(data)
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the request reach its target, then answer 502 in its place."""
    await reader.read(1)
    writer.write(BAD_GATEWAY)
    await writer.drain()


class FaultyBackend(Wrapped):
    """Leads the data path of every sandbox through a faulty proxy."""

    def __init__(self, inner: Backend, address: str) -> None:
        super().__init__(inner)
        self._address = address

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Return the proxy's address in place of the sandbox's own."""
        return replace(await self.inner.endpoint(sandbox_id), base=self._address)


@asynccontextmanager
async def faulty_backend(
    inner: Backend, target: str, *, cut_after: tuple[int, int] | None = (0, 600), heal: bool = True
) -> AsyncGenerator[tuple[Backend, FaultyProxy]]:
    """Yield a backend that reaches its sandboxes at ``target`` through a faulty proxy, and the proxy."""
    proxy = FaultyProxy(target, cut_after=cut_after, heal=heal)
    with tempfile.TemporaryDirectory(prefix="orchard-") as folder:
        path = Path(folder) / "faulty.sock"
        server = await asyncio.start_unix_server(proxy.serve, path)
        async with server:
            yield FaultyBackend(inner, f"unix:{path}"), proxy
            proxy.cut_all()
