"""ELF programs made to find their loader and libraries in a layer.

Most are rewritten by patchelf. Programs of Bun carry their scripts in a section whose place they know, so not a byte of
theirs may move. They have both kinds of hash table, of which glibc reads the GNU one alone; so the older one's bytes,
which are mapped, take the two paths: the program header names the loader there, and the table's entry becomes DT_RPATH.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchard.core.errors import Unsupported

_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_HASH, _STRTAB, _RPATH, _GNU_HASH = 4, 5, 15, 0x6FFFFEF5
_SEGMENT, _ENTRY = struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian


@dataclass(frozen=True)
class _Segment:
    """A program header: its own place in the file, and what it says."""

    at: int
    kind: int
    flags: int
    offset: int
    address: int
    size: int


def is_elf(path: Path) -> bool:
    """Return True for an ELF file of a 64-bit, little-endian machine."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def interpreter(path: Path) -> str | None:
    """Return the loader that an ELF file names; None: it is no program, or a static one."""
    with path.open("rb") as file:
        for each in _segments(file):
            if each.kind == _INTERP:
                file.seek(each.offset)
                return file.read(each.size).rstrip(b"\0").decode()
    return None


def is_bun(path: Path) -> bool:
    """Return True for a program that Bun compiled: its scripts lie in a section of their own."""
    with path.open("rb") as file:
        start, size, count, names = struct.unpack_from("<Q10xHHH", file.read(64), 40)
        file.seek(start + names * size + 24)
        offset, length = struct.unpack("<QQ", file.read(16)) if count else (0, 0)
        file.seek(offset)
        return b"\0.bun\0" in file.read(length)


def repoint(path: Path, loader: str, libraries: str) -> None:
    """Let the program ``path`` be started by ``loader`` and search ``libraries`` first, moving nothing in it.

    Raises:
        Unsupported: it has no spare hash table to take the paths.
    """
    paths = f"{loader}\0{libraries}\0".encode()
    with path.open("r+b") as file:
        segments = _segments(file)
        interp, dynamic = (next(each for each in segments if each.kind == kind) for kind in (_INTERP, _DYNAMIC))
        file.seek(dynamic.offset)
        entries = list(_ENTRY.iter_unpack(file.read(dynamic.size)))
        values = dict(entries)
        if not {_HASH, _GNU_HASH, _STRTAB} <= values.keys():
            raise Unsupported(f"{path.name} has no spare hash table that could name its loader")
        spare = values[_HASH]
        home = next(one for one in segments if one.kind == _LOAD and one.address <= spare < one.address + one.size)
        place = spare - home.address + home.offset
        file.seek(place)
        buckets, chains = struct.unpack("<II", file.read(8))
        if 4 * (2 + buckets + chains) < len(paths):
            raise Unsupported(f"the spare hash table of {path.name} is too small for {loader}")
        length = len(loader) + 1
        header = _SEGMENT.pack(_INTERP, interp.flags, place, spare, spare, length, length, 1)
        rpath = _ENTRY.pack(_RPATH, (spare + length - values[_STRTAB]) % (1 << 64))  # added modulo 2^64 by the loader
        turn = [tag for tag, _ in entries].index(_HASH)
        for offset, data in ((place, paths), (interp.at, header), (dynamic.offset + turn * _ENTRY.size, rpath)):
            file.seek(offset)
            file.write(data)


def _segments(file: IO[bytes]) -> list[_Segment]:
    file.seek(0)
    head = file.read(64)
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    found: list[_Segment] = []
    for number in range(count):
        at = start + number * size
        file.seek(at)
        kind, flags, offset, address, _, length, _, _ = _SEGMENT.unpack(file.read(_SEGMENT.size))
        found.append(_Segment(at, kind, flags, offset, address, length))
    return found
