"""Segment files: one for each writer, zstd frames of JSON lines, so that ``zstdcat`` reads them.

A frame is one group commit. A file that ends in the middle of a frame is read up to that frame; nobody ever appends
behind a torn frame, since each writer has a file of its own, which it holds under a lock for as long as it lives.
A frame that was harmed later costs itself alone: reading goes on at the next whole one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from orchard.core.errors import StoreFailed
from orchard.core.ids import new_id

SUFFIX = ".jsonl.zst"
SEGMENT_BYTES = 128 << 20
"""A writer starts a new file beyond this size."""
_CHUNK = 64 << 10
_MAGIC = b"\x28\xb5\x2f\xfd"
_REASONS = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
}


@dataclass(frozen=True)
class Frame:
    """One whole frame: where it lies in its file, in bytes, and what is in it."""

    offset: int
    size: int
    data: bytes


def store_error(doing: str, error: OSError) -> StoreFailed:
    """Return the typed error for ``error``, met while ``doing``."""
    reason = _REASONS.get(error.errno or 0, "io")
    hint = {"no_space": "free space, then try again", "denied": "make the folder writable"}.get(reason)
    return StoreFailed(f"{doing}: {error.strerror or error}", reason=reason, hint=hint)


class SegmentWriter:
    """Appends frames to files of its own in ``folder``; used by one thread."""

    def __init__(self, folder: Path, limit: int = SEGMENT_BYTES) -> None:
        self._folder, self._limit = folder, limit
        self._fd = -1
        self._size = 0
        self._path = folder
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True)

    def append(self, lines: bytes) -> None:
        """Write one frame and return when it is durable.

        Raises:
            StoreFailed: it is not; the file is as it was before.
        """
        frame = self._compressor.compress(lines)
        try:
            if self._fd < 0 or self._size >= self._limit:
                self._rotate()
            _write_all(self._fd, frame)
            os.fdatasync(self._fd)
        except OSError as error:
            self._undo()
            raise store_error(f"cannot write to {self._path}", error) from error
        self._size += len(frame)

    def close(self) -> None:
        """Release the file and its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rotate(self) -> None:
        self.close()
        path = self._folder / (new_id("seg") + SUFFIX)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            _sync_folder(self._folder)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._size, self._path = fd, 0, path

    def _undo(self) -> None:
        """Cut what a failed write left. After a failed sync nobody knows what is on disk: leave the file for good."""
        if self._fd < 0:
            return
        with suppress(OSError):  # a torn tail is what readers expect; the next append begins another file
            os.ftruncate(self._fd, self._size)
        self.close()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def make_folder(path: Path) -> None:
    """Make ``path`` and its parents, durable as what will be written into them."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        _sync_folder(one.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def segment_paths(folder: Path) -> list[Path]:
    """Return the segment files, oldest first."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))


def is_live(path: Path) -> bool:
    """Return whether a living writer holds the segment."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_frames(path: Path, offset: int = 0) -> Iterator[Frame]:
    """Yield the whole frames from ``offset`` (where a frame begins) on; what is torn or damaged is left out."""
    with path.open("rb") as file:
        begin: int | None = offset
        while begin is not None:
            offset = begin
            for frame in _frames_at(file, offset):
                yield frame
                offset = frame.offset + frame.size
            begin = _next_frame(file, offset)
            if begin is not None and next(_frames_at(file, offset), None) is not None:
                begin = offset  # its writer was in the middle of it; what has followed since shows that it is whole


def _frames_at(file: BinaryIO, offset: int) -> Iterator[Frame]:
    """Yield the frames that follow each other from ``offset`` on, up to the first that is not whole."""
    file.seek(offset)
    rest = b""
    while True:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        parts: list[bytes] = []
        size = 0
        while not decoder.eof:
            chunk = rest or file.read(_CHUNK)
            rest = b""
            if not chunk:
                return
            size += len(chunk)
            try:
                parts.append(decoder.decompress(chunk))
            except zstandard.ZstdError:
                return
        rest = decoder.unused_data
        size -= len(rest)
        yield Frame(offset, size, b"".join(parts))
        offset += size


def _next_frame(file: BinaryIO, offset: int) -> int | None:
    """Return where the next whole frame begins behind a damaged one at ``offset``; None behind a torn last one.

    A frame's first bytes are not ASCII, so they stand in no text that a frame holds uncompressed.
    """
    position, tail = offset + 1, b""
    while True:
        file.seek(position + len(tail))
        chunk = file.read(_CHUNK)
        if not chunk:
            return None
        window = tail + chunk
        at = window.find(_MAGIC)
        while at >= 0:
            if next(_frames_at(file, position + at), None) is not None:
                return position + at
            at = window.find(_MAGIC, at + 1)
        tail = window[-(len(_MAGIC) - 1) :]
        position += len(window) - len(tail)


@dataclass(frozen=True)
class Damage:
    """Bytes of a segment that hold no whole frame."""

    segment: str
    offset: int
    size: int
    tail: bool
    """At the end: what a crash tore off, which nobody was told is durable. Else something has harmed the file."""


def find_damage(path: Path) -> list[Damage]:
    """Return what cannot be read of a segment whose writer is gone."""
    found: list[Damage] = []
    end = 0
    for frame in read_frames(path):
        if frame.offset > end:
            found.append(Damage(path.name, end, frame.offset - end, tail=False))
        end = frame.offset + frame.size
    size = path.stat().st_size
    return found + ([Damage(path.name, end, size - end, tail=True)] if size > end else [])


def read_frame(path: Path, offset: int, size: int) -> bytes:
    """Return the contents of the frame at ``offset``.

    Raises:
        StoreFailed: ``damaged``, it is not there any more.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return zstandard.ZstdDecompressor().decompress(file.read(size))
    except (zstandard.ZstdError, FileNotFoundError) as error:
        raise StoreFailed(f"{path.name} is damaged at byte {offset}", reason="damaged") from error
