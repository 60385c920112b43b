"""Manifests of work trees, what is left out of them, and baselines to compare with."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import shutil
import tarfile
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from orchard.core.disk import needs_room
from orchard.core.errors import Conflict
from orchard.sandbox.answers import next_piece
from orchard.sandbox.files import ndjson, path_of
from orchard.sandbox.sealed import EXECUTABLE, FILE, LINK, Blob
from orchard.sandbox.toolnames import TOOLS
from orchard.sandbox.transport import Call, Transport, query

CACHES = (
    "__pycache__", "*.pyc", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".venv",
    "node_modules", "*.egg-info", ".coverage", ".DS_Store",
)  # fmt: skip
"""Names left out of a diff by default, at any depth: what tools make and nobody writes."""
ALWAYS = (".git",)
"""Names always left out: a patch cannot hold them."""


@dataclass(frozen=True, slots=True)
class Node:
    """One name of a work tree."""

    type: Literal["file", "dir", "symlink", "other"]
    mode: int
    size: int
    sha256: str | None
    target: str | None

    @property
    def git_mode(self) -> int | None:
        """Return the mode git would give it; None for what git does not hold."""
        if self.type == "symlink":
            return LINK
        if self.type != "file":
            return None
        return EXECUTABLE if self.mode & 0o100 else FILE

    def same(self, other: Node | None) -> bool:
        """Return whether git sees no difference."""
        return (
            other is not None
            and self.git_mode == other.git_mode
            and (self.sha256, self.target) == (other.sha256, other.target)
        )


Manifest = Mapping[str, Node]
"""Path relative to the work tree (surrogates for what is not UTF-8) -> what is there."""


def excludes(chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names to leave out; None is the default."""
    return (*ALWAYS, *(CACHES if chosen is None else chosen))


def excluded(path: str, names: Iterable[str]) -> bool:
    """Return whether a component of ``path``, or the whole, matches one of ``names``."""
    parts = path.split("/")
    return any(fnmatch.fnmatchcase(part, name) for name in names for part in (*parts, path))


async def fetch_manifest(transport: Transport, path: str, names: Sequence[str]) -> dict[str, Node]:
    """Return what is below ``path`` in the sandbox now."""
    call = Call("GET", "/manifest", query(path=path, exclude=_left_out(path, names)), silence=None)
    return parse_manifest((await transport.request(call)).body, names)


def _left_out(path: str, names: Sequence[str]) -> list[str | bytes]:
    """Return ``names`` and what keeps tool layers out, which are no part of any work tree."""
    tools, folder = PurePosixPath(TOOLS), PurePosixPath(path)
    if folder.is_relative_to(tools):
        return ["*"]
    return [*names, f"/{tools.relative_to(folder)}"] if tools.is_relative_to(folder) else [*names]


def parse_manifest(body: bytes, names: Sequence[str]) -> dict[str, Node]:
    """Return the nodes of a whole answer."""
    nodes: dict[str, Node] = {}
    for facts in ndjson(body):
        path = (path_of(facts) or "").removeprefix("./")
        if path in ("", ".") or excluded(path, names):
            continue
        nodes[path] = Node(
            facts["type"], int(facts["mode"]), facts.get("size") or 0, facts.get("sha256"), path_of(facts, "target")
        )
    return nodes


class Baseline:
    """A work tree at one moment: its manifest and its contents, kept outside the sandbox."""

    def __init__(self, path: str, names: tuple[str, ...], nodes: Manifest, archive: IO[bytes]) -> None:
        self.path, self.names, self.nodes = path, names, nodes
        self._archive = archive
        weakref.finalize(self, archive.close)

    def save(self, folder: Path) -> None:
        """Keep it as ``folder``, all or nothing; one that is there already, or comes meanwhile, is as good."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as fresh:
            target = Path(fresh) / "done"
            target.mkdir()
            facts = {
                name: [node.type, node.mode, node.size, node.sha256, node.target] for name, node in self.nodes.items()
            }
            (target / "manifest.json").write_text(json.dumps(facts))
            self._archive.seek(0)
            with (target / "tree.tar").open("wb") as archive:
                shutil.copyfileobj(self._archive, archive, 1 << 20)
            try:
                target.rename(folder)
            except OSError:
                if not folder.exists():
                    raise

    @classmethod
    def load(cls, folder: Path, path: str, names: tuple[str, ...]) -> Baseline | None:
        """Return what ``save`` kept, or None."""
        try:
            facts = json.loads((folder / "manifest.json").read_bytes())
            archive = (folder / "tree.tar").open("rb")
        except FileNotFoundError:
            return None
        return cls(path, names, {name: Node(*node) for name, node in facts.items()}, archive)

    async def blobs(self, paths: Iterable[str]) -> dict[str, Blob]:
        """Return the contents of the files and links among ``paths``."""
        return await asyncio.to_thread(self._blobs, set(paths))

    def _blobs(self, wanted: set[str]) -> dict[str, Blob]:
        found: dict[str, Blob] = {}
        links = {path for path in wanted if path in self.nodes and self.nodes[path].type == "symlink"}
        for path in links:
            found[path] = Blob(LINK, os.fsencode(self.nodes[path].target or ""))
        files = {path for path in wanted - links if path in self.nodes and self.nodes[path].type == "file"}
        if files:
            self._archive.seek(0)
            with tarfile.open(fileobj=self._archive, mode="r:", errors="surrogateescape") as archive:
                for member in archive:
                    path = member.name.removeprefix("./")
                    if path in files and (content := archive.extractfile(member)) is not None:
                        found[path] = Blob(self.nodes[path].git_mode or FILE, content.read())
        if missing := files - found.keys():
            raise Conflict(f"the baseline does not hold {min(missing)!r}")
        return found


async def take_baseline(transport: Transport, path: str, names: tuple[str, ...]) -> Baseline:
    """Keep the work tree of a sandbox as it is now, in an unnamed temporary file."""
    nodes = await fetch_manifest(transport, path, names)
    with needs_room(Path(tempfile.gettempdir())):
        archive = await asyncio.to_thread(tempfile.TemporaryFile, prefix="orchard-baseline-")
    try:
        with needs_room(Path(tempfile.gettempdir())):
            await fetch_tree(transport, path, names, archive)
            archive.flush()
    except BaseException:
        archive.close()
        raise
    return Baseline(path, names, nodes, archive)


async def fetch_tree(transport: Transport, path: str, names: Sequence[str], into: IO[bytes]) -> None:
    """Write the tar of a work tree into an open file."""
    call = Call("GET", "/tree", query(path=path, exclude=_left_out(path, names)))

    async def once() -> None:
        into.seek(0)
        into.truncate()
        async with transport.open(call) as response:
            while piece := await next_piece(response):
                await asyncio.to_thread(into.write, piece)

    await transport.retrying(call, once)
