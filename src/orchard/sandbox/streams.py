"""Following a process's frame stream through broken connections, and feeding its stdin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Literal

import aiohttp

from orchard.core.errors import CommandLost, Conflict, NotFound, ResultExpired, Unavailable
from orchard.core.retry import Patience
from orchard.sandbox.answers import BROKEN, NOT_SENT, next_piece, translated
from orchard.sandbox.frames import Frame, FrameDecoder, Kind, StreamName
from orchard.sandbox.transport import RETRY_WINDOW, Call, Transport, query

PIECE = 1 << 20  # bytes of stdin sent, and repeated after a break, at once
_DRAIN = 0.5  # seconds that the end of an answer may lag behind its last frame
_PROGRESS = (Kind.STDOUT, Kind.STDERR, Kind.GAP, Kind.KEEPALIVE)


def start_call(body: dict[str, object], mode: Literal["bounded", "full"] | None) -> Call:
    """Return the request that starts a process. Its operation id makes a second arrival harmless."""
    return Call("POST", "/processes", query(stream=mode), json=body)


def stream_call(process_id: str, mode: Literal["bounded", "full"], offsets: dict[StreamName, int]) -> Call:
    """Return the request that attaches to a known process at ``offsets``."""
    where = query(mode=mode, stdout=offsets["stdout"], stderr=offsets["stderr"])
    return Call("GET", f"/processes/{process_id}/stream", where)


async def follow(transport: Transport, start: Call | None, attach: Callable[[], Call]) -> AsyncGenerator[Frame]:
    """Yield frames up to and with the exit.

    ``start`` is repeated until one stream has begun; from then on only ``attach`` is used, so that what is known to
    have started is never started again.

    Raises:
        CommandLost: it may have run, and what became of it cannot be learnt.
        Unavailable: nothing was sent.
        OrchardError: what the sandbox answered.
    """
    patience = Patience(RETRY_WINDOW)
    begun, sent = start is None, start is None
    while True:
        call = attach() if begun or start is None else start
        try:
            async with transport.stream(call, patience) as response:
                sent = True
                async for frame in _frames(response):
                    if frame.kind in _PROGRESS:
                        patience.reset()
                    if frame.kind == Kind.EXIT:
                        if not response.content.at_eof():
                            await _drain(response)
                        yield frame
                        return
                    begun = True
                    yield frame
        except NotFound as error:
            if call is start:
                raise
            raise CommandLost(f"the sandbox no longer knows this command: {error.message}") from error
        except Unavailable as error:
            await _wait(patience, error, sent)
            await transport.relocate()


async def _wait(patience: Patience, error: Unavailable, sent: bool) -> None:
    try:
        await patience.pause(error)
    except Unavailable:
        if not sent and error.reason == NOT_SENT:
            raise
        raise CommandLost(f"the command may have run; its sandbox cannot be reached: {error.message}") from error


async def _frames(response: aiohttp.ClientResponse) -> AsyncIterator[Frame]:
    decoder = FrameDecoder()
    while chunk := await next_piece(response):
        for frame in decoder.feed(chunk):
            yield frame
    raise Unavailable("the stream ended without an exit", reason=BROKEN)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Let the answer end, so that its connection can be used again."""
    with suppress(TimeoutError, Unavailable), translated():
        async with asyncio.timeout(_DRAIN):
            await response.content.read()


class StdinPipe:
    """Sends bytes to a process's stdin, each exactly once, in order.

    Args:
        transport: the wire.
        process_id: whose stdin.
        sole: nobody else writes to it, so that the sandbox need not be asked how much it has before each send.
    """

    def __init__(self, transport: Transport, process_id: str, *, sole: bool) -> None:
        self._transport, self._path = transport, f"/processes/{process_id}/stdin"
        self._sole, self._offset = sole, 0 if sole else None

    async def send(self, data: bytes, *, eof: bool = False) -> None:
        """Send ``data``; returns once the sandbox has taken it all.

        Raises:
            Conflict: stdin is not open.
        """
        if self._offset is None:
            self._offset = await self._post(b"", 0, eof=False)
        view, start = memoryview(data), self._offset
        self._offset = None  # unknown until this is through, also when cancelled
        at = 0
        while at < len(data) or eof:
            piece = bytes(view[at : at + PIECE])
            last = at + len(piece) >= len(data)
            at = await self._post(piece, start + at, eof=eof and last) - start
            if last and at >= len(data):
                break
        self._offset = start + at if self._sole else None

    async def feed(self, source: bytes | AsyncIterator[bytes]) -> None:
        """Send everything, then EOF. A process that does not want it (any more) is no error."""
        try:
            if isinstance(source, bytes):
                await self.send(source, eof=True)
                return
            async for piece in source:
                await self.send(piece)
            await self.send(b"", eof=True)
        except (Conflict, NotFound, ResultExpired):
            return

    async def _post(self, piece: bytes, offset: int, *, eof: bool) -> int:
        where = query(offset=offset, eof=eof or None)
        call = Call("POST", self._path, where, body=piece, silence=None)  # as long as the process reads nothing
        return int((await self._transport.request(call)).json()["accepted"])
