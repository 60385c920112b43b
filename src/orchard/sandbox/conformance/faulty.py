"""A proxy in front of a Unix socket or TCP address that misbehaves on purpose, as networks and load balancers do."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.protocol import Backend
from orchard.sandbox.types import Endpoint

BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 11\r\nConnection: close\r\n\r\nbad gateway"
)
Kind = Literal["refuse", "cut_request", "cut_answer", "502_before", "502_after", "delay", "duplicate"]


@dataclass(frozen=True)
class Fault:
    """What befalls one connection. Numbers are bytes; None is never."""

    cut_request: int | None = None
    """Break both ways once so many bytes of requests have passed."""
    cut_answer: int | None = None
    """Break both ways once so many bytes of answers have passed."""
    bad_gateway: Literal["before", "after"] | None = None
    """Answer 502 in place of the target, before or after it has got the request."""
    refuse: bool = False
    """Close at once."""
    delay: float = 0.0
    """Seconds before each piece of an answer."""
    duplicate: bool = False
    """Send the request a second time over another connection, and drop that answer."""


NONE = Fault()


class Faulty:
    """A running proxy. ``injected`` counts the faults that connections have met.

    Args:
        target: ``unix:/path`` or ``http://host:port``.
        choose: gives the fault of each new connection by its number.
    """

    def __init__(self, target: str, choose: Callable[[int], Fault]) -> None:
        self.target, self.choose, self.connections = target, choose, 0
        self.injected: Counter[Kind] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection, with or without a fault."""
        fault = self.choose(self.connections)
        self.connections += 1
        writers = [writer]
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            if fault.refuse:
                self.injected["refuse"] += 1
            elif fault.bad_gateway == "before":
                await reader.read(1)
                await self._answer_502(writer, writers, "502_before")
            else:
                await self._pass(fault, reader, writer, writers)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in writers:
                one.transport.abort()

    def cut_all(self) -> None:
        """Cut every connection that is open now."""
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Cut every connection and return once none is left."""
        self.cut_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.startswith("unix:"):
            return await asyncio.open_unix_connection(self.target.removeprefix("unix:"))
        parts = urlsplit(self.target)
        return await asyncio.open_connection(parts.hostname, parts.port or 80)

    async def _pass(
        self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:  # fmt: skip
        swallow = fault.bad_gateway is not None
        upstream, up_writer = await self._dial()
        writers.append(up_writer)
        ups = [up_writer]
        halves: list[asyncio.Task[None]] = []
        if fault.duplicate:
            twin, twin_writer = await self._dial()
            writers.append(twin_writer)
            ups.append(twin_writer)
            halves.append(asyncio.ensure_future(self._copy(twin, [], Fault(), "duplicate")))
        back = Fault(cut_answer=1) if swallow else fault
        there = asyncio.ensure_future(self._copy(reader, ups, fault, "cut_request"))
        here = asyncio.ensure_future(self._copy(upstream, [] if swallow else [writer], back, "cut_answer"))
        halves += [there, here]
        try:
            await asyncio.wait([there, here], return_when=asyncio.FIRST_EXCEPTION)  # a cut, or both have ended
            if swallow:
                await self._answer_502(writer, writers, "502_after")
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _answer_502(self, writer: asyncio.StreamWriter, writers: list[asyncio.StreamWriter], kind: Kind) -> None:
        self.injected[kind] += 1
        writer.write(BAD_GATEWAY)
        await writer.drain()
        writer.close()
        writers.remove(writer)

    async def _copy(
        self, reader: asyncio.StreamReader, writers: Sequence[asyncio.StreamWriter], fault: Fault, kind: Kind
    ) -> None:
        """Copy until EOF and hand that on; break off once the fault's bytes have passed."""
        limit = {"cut_request": fault.cut_request, "cut_answer": fault.cut_answer}.get(kind)
        delay = fault.delay if kind == "cut_answer" else 0.0
        passed = 0
        while limit is None or passed < limit:
            data = await reader.read(1 << 16 if limit is None else min(1 << 16, limit - passed))
            if not data:
                for writer in writers:
                    writer.write_eof()
                return
            passed += len(data)
            if kind == "duplicate":
                self.injected["duplicate"] += 1
            if delay:
                self.injected["delay"] += 1
                await asyncio.sleep(delay)
            for writer in writers:
                writer.write(data)
                await writer.drain()
        if writers:
            self.injected[kind] += 1
        raise ConnectionAbortedError("cut")


KINDS: tuple[Kind, ...] = ("cut_answer", "cut_request", "502_before", "502_after", "delay")
"""What ``disturbing`` injects, in turn."""
_SOUND = 2000  # bytes of answers that a sound connection lasts: kept alive for ever, it would shield from all faults


def disturbing(cut_after: tuple[int, int] | None = (0, 600), *, heal: bool = True) -> Callable[[int], Fault]:
    """Return a chooser of faults.

    Args:
        cut_after: bytes of an answer after which it is cut, from and to; None: no faults at all.
        heal: each kind in turn, and every second connection is sound for a while; without, every answer is cut.
    """
    chance = random.Random(7)

    def choose(number: int) -> Fault:
        if cut_after is None:
            return NONE
        cut = Fault(cut_answer=chance.randint(*cut_after))
        if not heal:
            return cut
        if number % 2:
            return Fault(cut_answer=_SOUND)
        faults = (
            cut, Fault(cut_request=chance.randint(0, 200)), Fault(bad_gateway="before"), Fault(bad_gateway="after"),
            Fault(delay=0.05, cut_answer=_SOUND),
        )  # fmt: skip
        return faults[number // 2 % len(faults)]

    return choose


@asynccontextmanager
async def faulty(target: str, choose: Callable[[int], Fault], path: Path) -> AsyncGenerator[tuple[Faulty, str]]:
    """Run a proxy to ``target`` at a Unix socket; yield it and its own ``unix:`` address."""
    proxy = Faulty(target, choose)
    server = await asyncio.start_unix_server(proxy.serve, str(path))
    try:
        yield proxy, f"unix:{path}"
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()


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
    inner: Backend, target: str, choose: Callable[[int], Fault]
) -> AsyncGenerator[tuple[Backend, Faulty]]:
    """Yield a backend that reaches its sandboxes at ``target`` through a faulty proxy, and the proxy."""
    with tempfile.TemporaryDirectory(prefix="orchard-") as folder:
        async with faulty(target, choose, Path(folder) / "faulty.sock") as (proxy, address):
            yield FaultyBackend(inner, address), proxy
