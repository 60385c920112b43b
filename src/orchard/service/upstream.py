"""HTTP/1.1 towards a sandbox, for relaying: bytes stream through, trailers and upgrades are kept.

The SDK's client (aiohttp) drops trailers and cannot speak over a tunnel, which a relay must; hence this small one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from orchard.core.connections import cut_when_silent
from orchard.core.errors import Unavailable
from orchard.sandbox.sessions import DIRECT_CONNECT

# A dead node is found within half a minute, but only while nothing sent is unacknowledged: on a connection that rests,
# or waits for the answer to what its node has taken.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)  # fmt: skip
Headers = list[tuple[bytes, bytes]]

_READ = 1 << 18  # bytes taken from a connection at once; bounds the memory of one relayed stream
_PROMPT = 1.0  # seconds that a sending takes before it is asked whether anybody still waits for it
_IDLE = 60.0  # seconds an unused connection is kept; sandboxd keeps it for ten minutes
_MOST_IDLE = 16  # unused connections kept for one sandbox


class _Sink:
    """Takes the parser's callbacks: head, body, and whatever fields come after the body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.trailers: Headers = []
        self.body: list[bytes] = []
        self.head_done = False
        self.done = False

    def on_header(self, name: bytes, value: bytes) -> None:
        (self.trailers if self.head_done else self.headers).append((name, value))

    def on_headers_complete(self) -> None:
        self.head_done = True

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.done = True


@dataclass
class Answer:
    """The head of an answer; ``trailers`` are filled once the body has been read."""

    status: int
    headers: Headers
    trailers: Headers = field(default_factory=Headers)

    def get(self, name: bytes) -> bytes | None:
        """Return the first field of that lower-case name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Connection:
    """One connection; one exchange at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.idle_since = 0.0
        self.reusable = False
        self.request_done = False
        """The whole request was sent; until then the connection cannot serve another one."""
        self.refused = False
        """The answer is an error: what is left of the request's body need not be sent."""
        self.ended_early = False
        self._method = b""
        self._sink = _Sink()
        self._parser: httptools.HttpResponseParser | None = None

    async def send_head(self, method: bytes, target: bytes, headers: Headers) -> None:
        """Send the head of a request.

        Raises:
            OSError: the connection broke.
        """
        self._method = method
        self.reusable = self.request_done = self.refused = False
        self._sink = _Sink()
        self._parser = httptools.HttpResponseParser(self._sink)
        lines = [b"%b %b HTTP/1.1\r\n" % (method, target)]
        lines += [b"%b: %b\r\n" % pair for pair in headers]
        lines.append(b"\r\n")
        self.writer.write(b"".join(lines))
        await self.writer.drain()

    async def send(self, data: bytes, wanted: Callable[[], bool] = lambda: True) -> None:
        """Send bytes, waiting while the other side is slow: for ever or, if no more ``wanted``, while it takes any.

        Raises:
            OSError: the connection broke, or was cut.
        """
        self.writer.write(data)
        prompt = asyncio.timeout(_PROMPT)
        try:
            async with prompt:
                await self.writer.drain()
        except TimeoutError:
            if not prompt.expired():
                raise
            await self._taken(self.writer.drain(), wanted)

    async def _taken(self, sent: Awaitable[None], wanted: Callable[[], bool] = lambda: False) -> None:
        cutting = asyncio.create_task(cut_when_silent(self.writer.transport, wanted))
        try:
            await sent
        finally:
            cutting.cancel()

    async def read_head(self) -> Answer:
        """Return the head of the final answer, or of ``101``; other interim ones are skipped.

        Raises:
            Unavailable: the connection broke, or what came is no HTTP.
        """
        while True:
            block = await self._read_block()
            status = _status(block)
            if status >= 200 or status == 101:
                break
        self._feed(block)
        if status in (101, 204, 304) or self._method == b"HEAD":
            self._sink.done = True
        self.refused = status >= 400
        return Answer(status, self._sink.headers, self._sink.trailers)

    async def _read_block(self) -> bytes:
        try:
            return await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Unavailable("the connection to the sandbox broke before it answered") from error
        except asyncio.LimitOverrunError as error:
            raise Unavailable("the sandbox sent a head that is too large") from error

    def _feed(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the bytes after a 101 stay in the reader, since only the head was fed
        except httptools.HttpParserError as error:
            raise Unavailable("the sandbox answered with something that is no HTTP") from error

    async def body(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes. After it the connection is ``reusable`` if its end was told.

        Raises:
            Unavailable: it was cut.
        """
        sink = self._sink
        framed = _is_framed(sink.headers)
        while True:
            if sink.body:  # all that one read brought, however finely it was cut: each piece passed on has its price
                data = sink.body[0] if len(sink.body) == 1 else b"".join(sink.body)
                sink.body.clear()
                yield data
            if sink.done:
                break
            data = await self._read_some()
            if not data:
                if framed and not self.ended_early:
                    raise Unavailable("the sandbox's answer was cut")
                return
            self._feed(data)
        self.reusable = self.request_done and (framed or self._method == b"HEAD")

    async def beginning(self, most: int) -> bytes:
        """Return the body, or of one longer than ``most`` bytes the beginning, which is somewhat longer too.

        Raises:
            Unavailable: it was cut.
        """
        body = bytearray()
        async with contextlib.aclosing(self.body()) as pieces:
            async for data in pieces:
                body += data
                if len(body) > most:
                    break
        return bytes(body)

    async def _read_some(self) -> bytes:
        try:
            return await self.reader.read(_READ)
        except OSError as error:
            raise Unavailable("the connection to the sandbox broke") from error

    async def drained(self) -> None:
        """Close the connection, and return once the other side has taken all that was sent, is gone, or takes none."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self._taken(self.writer.wait_closed())

    def end(self) -> None:
        """End the present body now, as if it were whole: for streams that would go on for ever."""
        self.ended_early = True
        self.writer.transport.abort()

    def abort(self) -> None:
        """Drop the connection at once; whoever reads from it learns of it."""
        self.writer.transport.abort()

    @property
    def stale(self) -> bool:
        """True if it can serve no further exchange."""
        return self.writer.is_closing() or self.reader.at_eof() or time.monotonic() - self.idle_since > _IDLE


def _status(block: bytes) -> int:
    parts = block.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1][:3].isdigit():
        raise Unavailable("the sandbox answered with something that is no HTTP")
    return int(parts[1][:3])


def _is_framed(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)


async def connect(base: str) -> Connection:
    """Open a connection to ``unix:/path`` or ``http://host:port``.

    Raises:
        Unavailable: nobody answers there; nothing was sent.
    """
    try:
        async with asyncio.timeout(DIRECT_CONNECT):
            if base.startswith("unix:"):
                streams = await asyncio.open_unix_connection(base.removeprefix("unix:"), limit=_READ)
            else:
                parts = urlsplit(base)
                streams = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_READ)
                for option in _KEEPALIVE:
                    streams[1].get_extra_info("socket").setsockopt(*option)
    except (OSError, TimeoutError) as error:
        raise Unavailable("the sandbox cannot be reached") from error
    return Connection(*streams)


class Pool:
    """Keeps connections for the next exchange. Several may be open to one sandbox, without a limit."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[Connection]] = defaultdict(list)

    async def take(self, base: str) -> Connection:
        """Return a connection that is free, opened if need be.

        Raises:
            Unavailable: nobody answers there.
        """
        kept = self._idle.get(base)
        while kept:
            connection = kept.pop()
            if not connection.stale:
                return connection
            connection.abort()
        return await connect(base)

    def give(self, base: str, connection: Connection) -> None:
        """Hand a connection back after its exchange; one that cannot serve again is dropped."""
        kept = self._idle[base]
        if not connection.reusable or len(kept) >= _MOST_IDLE:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        kept.append(connection)

    def drop(self, base: str) -> None:
        """Close the unused connections to ``base``."""
        for connection in self._idle.pop(base, []):
            connection.abort()

    def sweep(self) -> None:
        """Close what has been unused for too long, or was closed by the other side."""
        for base, kept in list(self._idle.items()):
            fresh = [connection for connection in kept if not connection.stale]
            for connection in kept:
                if connection not in fresh:
                    connection.abort()
            if fresh:
                self._idle[base] = fresh
            else:
                del self._idle[base]

    def close(self) -> None:
        """Close all unused connections."""
        for base in list(self._idle):
            self.drop(base)
