"""Files and folders between this machine and a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ParamSpec, TypeVar, cast

import aiohttp

from orchard.core.errors import FileError, Unavailable
from orchard.core.tasks import finish, settled
from orchard.sandbox.answers import BROKEN, next_piece
from orchard.sandbox.files import Files, RemotePath
from orchard.sandbox.packing import Extractor, local_error, tar_blocks
from orchard.sandbox.transport import Call, Transport, encode_path, query

_P = ParamSpec("_P")
_T = TypeVar("_T")
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

    reply = await transport.request(Call("PUT", "/tree", query(path=remote, user=user), body=body, silence=None))
    facts = reply.json()
    return Transfer(facts["files"], (*skipped, *facts.get("skipped", ())))


async def download(transport: Transport, remote: RemotePath, local: Path, *, exclude: tuple[str, ...] = ()) -> Transfer:
    """Fetch a file to the path ``local``, or what is in a folder into the folder ``local``."""
    files = Files(transport)
    entry = await files.stat(remote)
    if entry.type != "dir":
        await _download_file(files, remote, local, entry.mode)
        return Transfer(1, ())
    call = Call("GET", "/tree", query(path=remote, exclude=list[str | bytes](exclude)))

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
    """A file is put in the place of ``local`` once all of it is here; a device, pipe or socket is written into."""
    if await _here(local, _is_special, local):
        await _receive(files, remote, local, local, _open_special)
        return
    part = local.with_name(f".{local.name[:200]}.part")
    try:
        await _receive(files, remote, local, part, _create)
        await _here(local, part.chmod, mode & 0o777)
        await _here(local, part.replace, local)
    except BaseException:
        with contextlib.suppress(OSError):  # its folder may be missing, or a file: then it was never made
            part.unlink()
        raise


async def _receive(
    files: Files, remote: RemotePath, local: Path, place: Path, opened: Callable[[Path], IO[bytes]]
) -> None:
    held = contextlib.ExitStack()  # a cancel while the thread opens it must not lose it
    try:
        file = await finish(_here(local, lambda: held.enter_context(opened(place))))
        async with contextlib.aclosing(files.open_read(remote)) as pieces:
            async for piece in pieces:
                await _here(local, file.write, piece)
    except BaseException:
        with contextlib.suppress(FileError):  # what it still held may find no room either
            await finish(_here(local, held.close))
        raise
    await finish(_here(local, held.close))


async def _here(local: Path, call: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T:
    """Call in a thread; what the file system of this machine refuses is told of ``local``, the path that was given."""
    try:
        return await asyncio.to_thread(call, *given, **named)
    except OSError as error:
        raise local_error(error, str(local)) from error


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
        await finish(settled(work))
        raise


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
        self._rest = asyncio.run_coroutine_threadsafe(next_piece(self._response), self._loop).result()
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


def _create(path: Path) -> IO[bytes]:
    return path.open("wb")


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_special(path: Path) -> IO[bytes]:
    """Open what is no file. A pipe that nobody reads is refused (ENXIO): to wait for a reader could be for ever."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise FileError.of(f"{path} has nobody who reads from it", errno_name="ENXIO", path=str(path)) from error
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb", buffering=0)
