"""``box.files``: raw bytes both ways, streamed, over the files part of the wire.

A path is ``str`` (bytes that are not UTF-8 as surrogates, as ``os.fsdecode`` gives) or ``bytes``; a relative one
begins at the sandbox's workdir. It is resolved inside the sandbox's root, so no link leads out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from orchard.core.errors import Conflict, FileMissing, FilePresent, Unavailable, from_problem
from orchard.core.retry import Patience
from orchard.sandbox.answers import translated
from orchard.sandbox.localfile import piped
from orchard.sandbox.spool import read_range
from orchard.sandbox.transport import RETRY_WINDOW, Body, Call, Reply, Transport, query

RemotePath = str | bytes
_EVENTS = ("created", "modified", "removed", "moved", "overflow")
Content = bytes | str | Path | AsyncIterator[bytes]
"""What to write: bytes, text (as UTF-8), a local file, or an asynchronous iterator of bytes."""
EntryType = Literal["file", "dir", "symlink", "fifo", "socket", "device"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in the sandbox's file system."""

    path: str
    name: str
    type: EntryType
    size: int
    """Bytes."""
    mode: int
    """Permission bits, such as 0o644."""
    mtime: float
    """Seconds since the epoch."""
    uid: int
    gid: int
    user: str
    group: str
    blocks: int
    """512-byte blocks that it takes: few for a sparse file."""
    target: str | None
    """Of a symlink."""
    error: str | None = None
    """The errno, such as ``EACCES``, of what cannot be read."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a write left."""

    path: str
    size: int
    sha256: str
    mode: int


@dataclass(frozen=True, slots=True)
class Change:
    """One event of ``watch``."""

    event: Literal["created", "modified", "removed", "moved", "overflow"]
    """``overflow``: events were lost, so look again."""
    path: str
    """Absolute; where ``overflow`` tells of no name, empty."""
    origin: str | None = None
    """Of a move: where it came from."""


class Files:
    """The files of one sandbox. All failures of the file system are ``FileError`` and its leaves, one per errno."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, path: RemotePath, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the content, or ``length`` bytes from ``offset`` on."""
        return b"".join([piece async for piece in self.open_read(path, offset=offset, length=length)])

    async def read_text(self, path: RemotePath) -> str:
        """Return the content as text, never raising on it: what is not UTF-8 becomes U+FFFD."""
        return (await self.read(path)).decode("utf-8", "replace")

    def open_read(self, path: RemotePath, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """Yield the content in pieces, in flat memory, resumed where a connection breaks.

        Raises:
            Conflict: the file changed between two connections.
        """
        return read_range(self._transport, "/files", query(path=path), offset, length)

    async def write(
        self, path: RemotePath, content: Content, *, mode: int | None = None, user: str | None = None,
        parents: bool = True,
    ) -> Written:  # fmt: skip
        """Replace a file atomically: it has the old content or the new, also after a failure.

        Args:
            path: where.
            content: bytes, text, a local ``Path``, or an iterator (which cannot be repeated if the connection breaks).
            mode: permission bits; None keeps those of an existing file, a new one gets 0644.
            user: owner; None keeps the present one, a new file belongs to the sandbox's user.
            parents: make missing folders.
        """
        where = query(path=path, mode=_octal(mode), user=user, parents=parents)
        async with piped(content) as (body, size):
            headers = {} if size is None else {"Content-Length": str(size)}
            repeatable = not isinstance(content, AsyncIterator)
            facts = (await self._send("PUT", "/files", where, body=body, headers=headers, safe=repeatable)).json()
        return Written(_path(facts), facts["size"], facts["sha256"], _mode(facts["mode"]))

    async def append(self, path: RemotePath, content: bytes | str) -> None:
        """Add to the end of a file, exactly once; a missing file is made."""
        data = content.encode() if isinstance(content, str) else content
        patience = Patience(RETRY_WINDOW)
        while True:
            size = await self._size(path)
            try:
                await self._send("POST", "/files/append", query(path=path, offset=size), body=data, safe=False)
                return
            except Conflict as error:  # someone else appended in between: nothing of ours was written
                await patience.pause(error)
            except Unavailable as error:
                there = await self.read(path, offset=size, length=len(data)) if await self._size(path) > size else b""
                if there == data:
                    return
                data = data.removeprefix(there)  # what a cut body left is our own beginning, or someone else's data
                await patience.pause(error)

    async def stat(self, path: RemotePath, *, follow: bool = True) -> Entry:
        """Return what is known of a name; with ``follow``, of what a symlink leads to."""
        return _entry((await self._send("GET", "/files/stat", query(path=path, follow=int(follow)))).json())

    async def exists(self, path: RemotePath) -> bool:
        """Return whether a name is there; a dangling symlink is."""
        try:
            await self.stat(path, follow=False)
        except FileMissing:
            return False
        return True

    async def list(self, path: RemotePath = ".", *, recursive: bool = False, limit: int | None = None) -> list[Entry]:
        """Return what a folder holds, special files and dangling links too; no link is followed."""
        where = query(path=path, recursive=recursive, limit=limit)
        reply = await self._send("GET", "/files/list", where)
        return [_entry(facts) for facts in ndjson(reply.body)]

    async def mkdir(self, path: RemotePath, *, parents: bool = True, mode: int | None = None) -> None:
        """Make a folder. With ``parents`` the missing ones above too, and one that is there is fine."""
        where = query(path=path, parents=int(parents), mode=_octal(mode))
        await self._send("POST", "/files/mkdir", where, applied=FilePresent)

    async def move(self, path: RemotePath, to: RemotePath) -> None:
        """Rename; replaces a file."""
        await self._send("POST", "/files/move", query(path=path, to=to), applied=FileMissing)

    async def remove(self, path: RemotePath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, or an empty folder, or with ``recursive`` a whole one."""
        where = query(path=path, recursive=recursive, missing_ok=missing_ok)
        await self._send("POST", "/files/remove", where, applied=FileMissing)

    async def chmod(self, path: RemotePath, mode: int | None = None, *, user: str | None = None) -> None:
        """Set permission bits, owner (``name``, ``uid[:gid]``), or both."""
        await self._send("POST", "/files/chmod", query(path=path, mode=_octal(mode), user=user))

    async def symlink(self, path: RemotePath, target: RemotePath) -> None:
        """Make ``path`` a symlink to ``target``."""
        await self._send("POST", "/files/symlink", query(path=path, target=target), applied=FilePresent)

    async def watch(self, path: RemotePath = ".", *, recursive: bool = True) -> AsyncGenerator[Change]:
        """Yield changes below a folder as they happen, until it goes itself; begins when the first is asked for.

        Raises:
            Unavailable: the connection broke; changes may have been missed, so it is not resumed.
        """
        call = Call("GET", "/files/watch", query(path=path, recursive=int(recursive)), silence=None)
        async with self._transport.stream(call) as response:
            while True:
                with translated():
                    line = await response.content.readline()
                if not line:
                    return
                facts = json.loads(line)
                if facts.get("event") in _EVENTS:
                    yield Change(facts["event"], _path(facts), path_of(facts, "from"))

    async def _send(self, method: str, path: str, where: str, *, body: Body | None = None, **more: Any) -> Reply:
        return await self._transport.request(Call(method, path, where, body=body, silence=None, **more))

    async def _size(self, path: RemotePath) -> int:
        try:
            return (await self.stat(path)).size
        except FileMissing:
            return 0


def ndjson(body: bytes) -> list[dict[str, Any]]:
    """Return the objects of a whole JSON-lines answer, without its closing line.

    Raises:
        Unavailable: the closing line is missing, so the answer was cut.
        OrchardError: what went wrong once the answer had begun.
    """
    lines: list[dict[str, Any]] = [json.loads(line) for line in body.split(b"\n") if line]
    if lines and isinstance(problem := lines[-1].get("error"), dict):
        raise from_problem(cast("dict[str, Any]", problem))
    if not lines or not lines[-1].get("end"):
        raise Unavailable("the listing was cut off")
    return lines[:-1]


def path_of(facts: dict[str, Any], name: str = "path") -> str | None:
    """Return a path of the wire as text, bytes that are not UTF-8 as surrogates; None where there is none."""
    raw = facts.get(f"{name}_b64")
    return facts.get(name) if raw is None else base64.b64decode(raw).decode("utf-8", "surrogateescape")


def _path(facts: dict[str, Any]) -> str:
    return path_of(facts) or ""


def _entry(facts: dict[str, Any]) -> Entry:
    path = _path(facts)
    return Entry(
        path=path, name=path_of(facts, "name") or path.rstrip("/").rpartition("/")[2], type=facts["type"],
        size=facts["size"], mode=_mode(facts["mode"]), mtime=float(facts["mtime"]), uid=facts["uid"], gid=facts["gid"],
        user=facts.get("user") or "", group=facts.get("group") or "", blocks=facts.get("blocks") or 0,
        target=path_of(facts, "target"), error=facts.get("error"),
    )  # fmt: skip


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:04o}"


def _mode(value: int | str) -> int:
    return int(value, 8) if isinstance(value, str) else value
