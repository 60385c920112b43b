"""Local files on their way in and out, in flat memory and off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

from orchard.core.tasks import finish, settled
from orchard.sandbox.transport import Body

PIECE = 1 << 18
_SENDFILE = 1 << 27  # bytes that the kernel copies in one call at most
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@asynccontextmanager
async def piped(content: bytes | str | Path | AsyncIterator[bytes]) -> AsyncGenerator[tuple[Body, int | None]]:
    """Yield (request body, its size where the body does not tell it) for any kind of content.

    A local file is measured and read anew for each try.
    """
    if isinstance(content, str):
        content = bytes(content, "utf-8")
    if isinstance(content, bytes):
        yield content, len(content)
    elif isinstance(content, Path):
        file = await asyncio.to_thread(_open, content)
        with file:
            yield lambda: FileBody(file), None
    else:
        source = content
        yield lambda: source, None


class FileBody(Payload):
    """A file as a request's body. Over a plain socket the kernel copies it, in a thread."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._file = file
        self._size = self._length = os.fstat(file.fileno()).st_size

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Refuse: the content is bytes and may be large."""
        raise TypeError("the body is a file")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send it all.

        Raises:
            OSError: the file or the connection broke, or the file became shorter than it was said to be.
        """
        sent = await self._by_kernel(writer) if self._length > PIECE and isinstance(writer, StreamWriter) else 0
        async for piece in _pieces(self._file, sent, self._length):
            await writer.write(piece)

    async def _by_kernel(self, writer: StreamWriter) -> int:
        """Return how much was sent: all, or nothing where the bytes must pass through this process."""
        writer.send_headers()
        await asyncio.sleep(0)  # some loops write only between two steps
        transport = writer.transport
        if transport is None or writer.chunked or transport.get_extra_info("sslcontext") is not None:
            return 0
        if transport.get_write_buffer_size() or not hasattr(os, "sendfile"):
            return 0
        # Descriptors of our own: whoever closes the others would let the thread meet strangers under their numbers.
        source = os.dup(self._file.fileno())
        connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        work = asyncio.ensure_future(asyncio.to_thread(_sendfile, connection, source, self._length))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # ends the thread, wherever it stands
                connection.shutdown(socket.SHUT_RDWR)
            await finish(settled(work))
            raise
        finally:
            connection.close()
            os.close(source)


def _sendfile(connection: socket.socket, source: int, size: int) -> int:
    poll, sent = select.poll(), 0
    poll.register(connection, select.POLLOUT)
    while sent < size:
        try:
            copied = os.sendfile(connection.fileno(), source, sent, min(size - sent, _SENDFILE))
        except BlockingIOError:
            poll.poll()
            continue
        except OSError as error:
            if sent or error.errno not in _NO_SENDFILE:
                raise
            return 0
        if not copied:
            raise OSError(errno.ESTALE, "the file became shorter while it was sent")
        sent += copied
    return sent


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


async def _pieces(file: BinaryIO, start: int, size: int) -> AsyncIterator[bytes]:
    await asyncio.to_thread(file.seek, start)
    left = size - start
    while left > 0 and (piece := await asyncio.to_thread(file.read, min(PIECE, left))):
        left -= len(piece)
        yield piece
    if left > 0:
        raise OSError(errno.ESTALE, "the file became shorter while it was sent")
