"""Ranges of bytes read through broken connections: a process's spool, a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from orchard.core.errors import Conflict, InvalidArgument, Unavailable
from orchard.core.retry import Patience
from orchard.sandbox.answers import next_piece
from orchard.sandbox.frames import StreamName
from orchard.sandbox.transport import RETRY_WINDOW, SILENCE, Call, Transport


def read_spool(
    transport: Transport, process_id: str, stream: StreamName, offset: int, length: int | None
) -> AsyncGenerator[bytes]:
    """Yield the spool of ``stream`` of a process."""
    return read_range(transport, f"/processes/{process_id}/output/{stream}", "", offset, length)


async def read_range(
    transport: Transport, path: str, query: str, offset: int = 0, length: int | None = None
) -> AsyncGenerator[bytes]:
    """Yield ``length`` bytes from ``offset`` on, resuming where a connection broke.

    Raises:
        Conflict: the file changed meanwhile, so its halves would not fit.
    """
    if offset < 0 or (length is not None and length < 0):
        raise InvalidArgument("offset and length must not be negative", field="offset" if offset < 0 else "length")
    end = None if length is None else offset + length
    patience, stamp, at = Patience(RETRY_WINDOW), None, offset
    while end is None or at < end:
        wanted = f"bytes={at}-{'' if end is None else end - 1}"
        call = Call("GET", path, query, headers={"Range": wanted} if wanted != "bytes=0-" else {}, silence=SILENCE)
        try:
            async with transport.stream(call, patience) as response:
                seen = response.headers.get("Orchard-Mtime")
                if at > offset and seen != stamp:
                    raise Conflict("the file changed while it was read")
                stamp = seen
                while chunk := await next_piece(response):
                    patience.reset()
                    at += len(chunk)
                    yield chunk
                return
        except InvalidArgument as error:
            if error.field is None and at >= offset:
                return  # 416: nothing at or beyond this offset
            raise
        except Unavailable as error:
            await transport.relocate()
            await patience.pause(error)
