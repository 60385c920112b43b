"""Files and folders between this machine and a sandbox."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import aiohttp

from orchard.core.errors import FileError, Unavailable
from orchard.core.tasks import finish
from orchard.sandbox.answers import BROKEN, translated
from orchard.sandbox.files import Files, RemotePath
from orchard.sandbox.packing import Extractor, tar_blocks
from orchard.sandbox.transport import SILENCE, Call, Transport, encode_path, query

_BATCH = 1 << 18  # bytes of a tar made in one hop to a thread
_SPECIAL = ("fifo", "socket", "device")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a transfer moved."""

    files: int
    """Entries: files, folders, links."""
    skipped: tuple[str, ...]
    """Names that were left out: special files, and what could not be read."""


async def upload(transport: Transport, local: Path, remote: RemotePath, *, user: str | None = None) -> Transfer:
    """Send a file to the path ``remote``, or what is in a folder into the folder ``remote``."""
    if not await asyncio.to_thread(local.is_dir):
        facts = await asyncio.to_thread(_lstat_mode, local)
        await Files(transport).write(remote, local, mode=facts, user=user)
        return Transfer(1, ())
    skipped: list[str] = []

    def body() -> AsyncIterator[bytes]:
        skipped.clear()
        return _threaded(tar_blocks(local, skipped))

    reply = await transport.request(Call("PUT", "/tree", query(path=remote, user=user), body=body))
    facts = reply.json()
    return Transfer(facts["files"], (*skipped, *facts.get("skipped", ())))


async def download(transport: Transport, remote: RemotePath, local: Path, *, exclude: tuple[str, ...] = ()) -> Transfer:
    """Fetch a file to the path ``local``, or what is in a folder into the folder ``local``."""
    files = Files(transport)
    entry = await files.stat(remote)
    if entry.type != "dir":
        await _download_file(files, remote, local, entry.mode)
        return Transfer(1, ())
    call = Call("GET", "/tree", query(path=remote, exclude=list[str | bytes](exclude)), silence=SILENCE)

    async def once() -> Transfer:
        async with transport.open(call) as response:
            return await extract(response, local)

    done = await transport.retrying(call, once)
    base = encode_path(entry.path).rstrip(b"/") + b"/"
    special = [
        encode_path(found.path).removeprefix(base).decode("utf-8", "surrogateescape")
        for found in await files.list(remote, recursive=True)
        if found.type in _SPECIAL or found.error
    ]
    return Transfer(done.files, (*done.skipped, *special))


async def _download_file(files: Files, remote: RemotePath, local: Path, mode: int) -> None:
    part = local.with_name(f".{local.name[:200]}.part")
    try:
        with await asyncio.to_thread(_create, part) as file:
            async for piece in files.open_read(remote):
                await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(part.chmod, mode & 0o777)
        await asyncio.to_thread(part.replace, local)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


async def extract(response: aiohttp.ClientResponse, local: Path) -> Transfer:
    """Extract the tar that an answer streams below ``local``, in a thread fed from here.

    Raises:
        FileError: ``EXDEV`` for a member that leads out.
        Unavailable: the stream broke.
    """
    feed = _Feed(response, asyncio.get_running_loop())
    work = asyncio.ensure_future(asyncio.to_thread(_extract, feed, local))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        feed.stop()
        await finish(_settled(work))
        raise


async def _settled(work: asyncio.Future[Any]) -> None:
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


def _extract(feed: _Feed, local: Path) -> Transfer:
    try:
        with (
            tarfile.open(fileobj=cast("IO[bytes]", feed), mode="r|", bufsize=1 << 16) as archive,
            Extractor(local) as target,
        ):
            for member in archive:
                target.add(member, archive.extractfile(member) if member.isreg() else None)
            feed.drain()
            return Transfer(target.files, tuple(target.skipped))
    except tarfile.TarError as error:
        raise Unavailable(f"the tree was cut off: {error}", reason=BROKEN) from error


class _Feed:
    """The blocking file that ``tarfile`` reads, over an answer that the event loop receives."""

    def __init__(self, response: aiohttp.ClientResponse, loop: asyncio.AbstractEventLoop) -> None:
        self._response, self._loop = response, loop
        self._rest: bytes = b""
        self._stopped = False

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (self._rest or self._more()):
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def drain(self) -> None:
        while self._more():
            pass

    def stop(self) -> None:
        self._stopped = True
        self._response.close()

    def _more(self) -> bool:
        if self._stopped:
            raise Unavailable("the transfer was cancelled", reason=BROKEN)
        with translated():
            self._rest = asyncio.run_coroutine_threadsafe(self._response.content.readany(), self._loop).result()
        return bool(self._rest)


async def _threaded(blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what a blocking iterator yields, made in a thread a batch at a time."""
    while batch := await asyncio.to_thread(_batch, blocks):
        yield batch


def _batch(blocks: Iterator[bytes]) -> bytes:
    taken, size = list[bytes](), 0
    while size < _BATCH and (block := next(blocks, None)) is not None:
        taken.append(block)
        size += len(block)
    return b"".join(taken)


def _lstat_mode(path: Path) -> int:
    if not path.is_file():
        raise FileError.of(f"{path} is not a file or folder here", errno_name="ENOENT", path=str(path))
    return path.stat().st_mode & 0o777


def _create(path: Path) -> Any:
    return path.open("wb")
