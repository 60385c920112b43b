"""Manifests of whole roots, on disk: of sandboxes, and of images, each taken once from a fresh sandbox.

A file of them is gzip; its first line holds the mount points that were left out, the rest is as sandboxd sent it.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast
from weakref import WeakValueDictionary

from orchard.core.config import cache_dir
from orchard.core.errors import Unavailable, Unsupported, from_problem
from orchard.core.ids import new_id
from orchard.core.tasks import finish
from orchard.sandbox.answers import BROKEN, next_piece
from orchard.sandbox.kubernetes.changes import Changes, changes_of
from orchard.sandbox.kubernetes.pod import HOME
from orchard.sandbox.kubernetes.registry import Base
from orchard.sandbox.protocol import Backend
from orchard.sandbox.toolnames import TOOLS
from orchard.sandbox.transport import Call, Transport, query
from orchard.sandbox.types import SandboxSpec

_FORM = 1
"""Version of the files; part of their names."""
_TOOLS_HOME = TOOLS.rpartition("/")[0].encode()
_TTL = 1800.0
_SILENCE = 300.0  # seconds that hashing one file may take
_TAIL = 64 << 10  # bytes; the last line is shorter
_LEVEL = 1
_LONGEST = 64 << 20  # bytes of one file, packed: of a million files or more
_KEPT = 256 << 20  # bytes of all images' that are kept, the last used; the chart gives them their room


async def take(transport: Transport, path: Path) -> None:
    """Write the manifest of a sandbox's root, its mounts left out, to ``path``.

    Raises:
        Unsupported: it is too long.
        OrchardError: it cannot be had.
    """
    mounts = _mounts((await transport.request(Call("GET", "/files", query(path="/proc/self/mountinfo")))).body)
    head = json.dumps({"mounts": [base64.b64encode(mount).decode() for mount in mounts]}).encode() + b"\n"
    left_out: list[str | bytes] = [b"/" + mount for mount in mounts]
    call = Call("GET", "/manifest", query(path="/", exclude=left_out), silence=_SILENCE)

    async def once() -> None:
        tail = b""
        with path.open("wb") as out, gzip.GzipFile(fileobj=out, mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
            packed.write(head)
            async with transport.open(call) as response:
                while piece := await next_piece(response):
                    tail = (tail + piece)[-_TAIL:]
                    await asyncio.to_thread(packed.write, piece)
                    if out.tell() > _LONGEST:
                        raise Unsupported(
                            "the root has more files than a commit can compare", reason="too_large",
                            hint="remove files, or begin with an image that has fewer",
                        )  # fmt: skip
        _check_end(tail)

    await transport.retrying(call, once)


def _check_end(tail: bytes) -> None:
    """Return if the manifest is whole."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        facts = cast("dict[str, Any]", json.loads(last))
    except ValueError:
        facts = {}
    if isinstance(problem := facts.get("error"), dict):
        raise from_problem(cast("dict[str, Any]", problem))
    if not facts.get("end"):
        raise Unavailable("the manifest was cut off", reason=BROKEN)


def _mounts(mountinfo: bytes) -> list[bytes]:
    """Return the topmost mount points but the root, relative to it, and the place of our own."""
    found = {HOME.encode()}
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if len(fields) > 4:
            found.add(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), fields[4]))
    found.discard(b"/")
    if any(path.startswith(f"{TOOLS}/".encode()) for path in found):
        found.add(_TOOLS_HOME)  # with what the runtime made for mount points
    inner = {path for path in found if any(path.startswith(other + b"/") for other in found)}
    return sorted(path.lstrip(b"/") for path in found - inner)


@contextmanager
def _opened(file: Path | IO[bytes]) -> Generator[tuple[Sequence[bytes], gzip.GzipFile]]:
    with gzip.open(file, "rb") as lines:
        yield [base64.b64decode(mount) for mount in json.loads(next(lines))["mounts"]], lines


def compare(image: IO[bytes], now: Path) -> Changes:
    """Return how the root of ``now`` differs from that of ``image``; as ``changes_of``."""
    with _opened(image) as (image_mounts, image_lines), _opened(now) as (mounts, lines):
        return changes_of(image_lines, lines, sorted({*image_mounts, *mounts}))


class ImageManifests:
    """Manifests of images, kept in the cache folder: as many as ``_KEPT`` bytes hold, the last used.

    Args:
        backend: makes the fresh sandboxes.
        daemon_image: another one may see or mount another root.
    """

    def __init__(self, backend: Backend, daemon_image: str) -> None:
        self._backend, self._daemon_image = backend, daemon_image
        self._turns = WeakValueDictionary[Path, asyncio.Lock]()  # each for as long as somebody has it or waits

    async def of(self, base: Base, user: str | None, folder: Path) -> IO[bytes]:
        """Return the manifest of an image, as ``user`` of a sandbox sees it, open: its file may go while it is read.

        Args:
            base: the image.
            user: of the sandbox.
            folder: where it is drafted, on the cache's disk.

        Raises:
            CreateFailed: no sandbox of the image can be made now.
            OrchardError: its manifest cannot be had.
        """
        facts = json.dumps([_FORM, base.reference.partition("@")[2], self._daemon_image, user])
        path = cache_dir() / "kubernetes" / "manifests" / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.gz"
        turn = self._turns.setdefault(path, asyncio.Lock())
        async with turn:
            with suppress(FileNotFoundError):
                os.utime(path)
                return path.open("rb")
            draft = folder / "image.gz"
            await self._make(base, user, draft)
            opened = draft.open("rb")
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.replace(path)
            _keep_last_used(path.parent)
            return opened

    async def _make(self, base: Base, user: str | None, path: Path) -> None:
        spec = SandboxSpec(base.reference, user=user, ttl=_TTL, idle=_TTL)
        made = await self._backend.create(spec, new_id("key"))
        try:
            transport = Transport(await self._backend.endpoint(made.id))
            try:
                await take(transport, path)
            finally:
                await transport.close()
        finally:
            await finish(self._backend.delete(made.id, wait=False))


def _keep_last_used(folder: Path) -> None:
    """Remove what was used longest ago, until the rest takes no more than ``_KEPT`` bytes."""
    found = list[tuple[float, int, Path]]()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process is at it, too
            found.append(((told := path.stat()).st_mtime, told.st_size, path))
    left = _KEPT
    for _, size, path in sorted(found, reverse=True):
        left -= size
        if left < 0:
            path.unlink(missing_ok=True)
