"""What a sandbox has changed: the manifest of its root against that of its image. Pure, in the memory of the changes.

Manifests come in the order of raw paths, so both are read once, side by side, and equal lines are not even parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchard.core.errors import FileError, InternalError, Unsupported
from orchard.sandbox.files import path_of
from orchard.sandbox.transport import encode_path

_WHITEOUT = b".wh."
"""What the name of a deleted file begins with in a layer, so no other file can be named so there."""
_SAME = ("type", "mode", "uid", "gid", "sha256", "target", "size")
_FOLDER = b'"type":"dir"'  # as sandboxd writes it; within a name, quotes are escaped
Facts: TypeAlias = dict[str, Any]
"""One line of a manifest."""


@dataclass(slots=True)
class Changes:
    """What a layer over the image is to hold. Paths are raw, relative to the root."""

    files: dict[bytes, Facts] = field(default_factory=dict[bytes, Facts])
    """New or changed, parents before what is in them; each with all folders on the way to it."""
    deleted: list[bytes] = field(default_factory=list[bytes])
    """Of what is deleted with all below it, the topmost."""

    def check(self, most: int) -> None:
        """Return if the files alone hold at most ``most`` bytes; holes and further hard links count, too.

        Raises:
            Unsupported: they hold more.
        """
        held = sum(int(facts.get("size") or 0) for facts in self.files.values() if facts["type"] == "file")
        if held > most:
            raise too_large(most)


def changes_of(image: Iterable[bytes], now: Iterable[bytes], mounts: Sequence[bytes]) -> Changes:
    """Return how the root ``now`` differs from that of its image; both are the lines of manifests.

    Left out is what lies below ``mounts``, and what a layer cannot hold and nobody misses: sockets, FIFOs. A time that
    differs by less than a second is the same, since not every file system keeps more.

    Raises:
        FileError: something that may have changed cannot be read; ``path`` names it.
        Unsupported: a name that a layer cannot hold.
    """
    return _Comparison(mounts).run(_Lines(image), _Lines(now))


class _Lines:
    """A manifest, a line at a time."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines: Iterator[bytes] = iter(lines)
        self.raw: bytes = b""
        self._parsed: tuple[bytes, Facts] | None = None
        self.step()

    def step(self) -> None:
        """Go on to the next line."""
        self._parsed = None
        self.raw = next(self._lines, b"")

    def head(self) -> tuple[bytes, Facts] | None:
        """Return path and facts of the line, or None after the last."""
        if self._parsed is None and self.raw:
            facts: Facts = json.loads(self.raw)
            if "end" in facts or "type" not in facts:
                self.raw = b""
                return None
            self._parsed = (encode_path(path_of(facts) or ""), facts)
        return self._parsed


class _Comparison:
    def __init__(self, mounts: Sequence[bytes]) -> None:
        self._mounts = mounts
        self._found = Changes()
        self._way: dict[bytes, bytes] = {}
        """Lines of the folders on the way to where the walk is."""
        self._lost: set[bytes] = set()
        """Folders of the image that are none any more."""

    def run(self, image: _Lines, now: _Lines) -> Changes:
        while image.raw or now.raw:
            if _FOLDER in now.raw and (new := now.head()) is not None:
                self._enter(new[0], now.raw)
            if image.raw != now.raw:
                self._differing(image, now)
                continue
            image.step()
            now.step()
        return self._found

    def _differing(self, image: _Lines, now: _Lines) -> None:
        old, new = image.head(), now.head()
        if old is not None and (new is None or old[0] <= new[0]):
            image.step()
        if new is not None and (old is None or new[0] <= old[0]):
            now.step()
        if new is None or (old is not None and old[0] < new[0]):
            if old is not None:
                self._delete(*old)
        elif old is None or new[0] < old[0]:
            self._put(*new, None)
        else:
            self._put(*new, old[1])

    def _enter(self, path: bytes, line: bytes) -> None:
        # "a-b" comes between "a" and "a/x": a folder is passed once something greater than all in it has come
        for passed in [known for known in self._way if path > known + b"/" and not path.startswith(known + b"/")]:
            del self._way[passed]
        self._way[path] = line

    def _put(self, path: bytes, facts: Facts, before: Facts | None) -> None:
        if self._is_mount(path):
            return
        if before is not None and before["type"] == "dir" and facts["type"] != "dir":
            self._lost.add(path)
        if before is not None and _same(facts, before):
            return
        if facts.get("error"):
            name = path.decode("utf-8", "surrogateescape")
            raise FileError.of(
                f"/{name} cannot be read in the sandbox: {facts['error']}", errno_name=str(facts["error"]),
                path=f"/{name}", hint="run the sandbox as root, or give the file to its user",
            )  # fmt: skip
        if facts["type"] != "other":
            self._take(path, facts)
        elif before is not None and before["type"] != "other":
            self._white(path)

    def _delete(self, path: bytes, facts: Facts) -> None:
        if self._is_mount(path):
            return
        if facts["type"] == "dir":
            self._lost.add(path)
        if path.rpartition(b"/")[0] not in self._lost:
            self._white(path)

    def _white(self, path: bytes) -> None:
        self._take_way(path)
        self._found.deleted.append(path)

    def _take(self, path: bytes, facts: Facts) -> None:
        if path.rpartition(b"/")[2].startswith(_WHITEOUT):
            name = path.decode("utf-8", "replace")
            raise Unsupported(f"no image layer can hold /{name}: such names mean what is deleted", hint="rename it")
        self._take_way(path)
        self._found.files[path] = facts

    def _take_way(self, path: bytes) -> None:
        at = path.find(b"/")
        while at >= 0:
            folder = path[:at]
            if folder not in self._found.files:
                if folder not in self._way:
                    raise InternalError(f"the manifest has {path!r} before its folder")
                self._found.files[folder] = json.loads(self._way[folder])
            at = path.find(b"/", at + 1)

    def _is_mount(self, path: bytes) -> bool:
        return any(path == mount or path.startswith(mount + b"/") for mount in self._mounts)


def too_large(most: int) -> Unsupported:
    """Return the error that tells of changes beyond ``most`` bytes."""
    return Unsupported(
        f"the changes take more than the {most} bytes that the layer of a commit may have", reason="too_large",
        hint="remove what the image need not have, or raise commit_bytes",
    )  # fmt: skip


def _same(one: Facts, other: Facts) -> bool:
    keys = _SAME if one["type"] == "file" else _SAME[:-1]
    return int(one["mtime"]) == int(other["mtime"]) and all(one.get(key) == other.get(key) for key in keys)
