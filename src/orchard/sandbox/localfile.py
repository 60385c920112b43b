"""Local files on their way in and out, in flat memory and off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from orchard.sandbox.transport import Body

PIECE = 1 << 18


@asynccontextmanager
async def piped(content: bytes | str | Path | AsyncIterator[bytes]) -> AsyncGenerator[tuple[Body, int | None]]:
    """Yield (request body, its size or None) for any kind of content; a local file is read anew for each try."""
    if isinstance(content, str):
        content = bytes(content, "utf-8")
    if isinstance(content, bytes):
        yield content, len(content)
    elif isinstance(content, Path):
        file = await asyncio.to_thread(_open, content)
        with file:
            size = await asyncio.to_thread(file.seek, 0, SEEK_END)
            yield lambda: _pieces(file, size), size
    else:
        source = content
        yield lambda: source, None


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


async def _pieces(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    await asyncio.to_thread(file.seek, 0)
    left = size
    while left > 0 and (piece := await asyncio.to_thread(file.read, min(PIECE, left))):
        left -= len(piece)
        yield piece
