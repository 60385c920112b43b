"""``box.diff``: what changed in a work tree, against a baseline kept outside, made by this machine's git."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
from collections.abc import Iterable
from weakref import WeakValueDictionary

from orchard.core.config import cache_dir
from orchard.core.disk import needs_room
from orchard.core.errors import FileMissing
from orchard.core.ids import new_id
from orchard.core.tasks import finish, unwrapped
from orchard.sandbox.files import Files
from orchard.sandbox.manifest import Baseline, Manifest, fetch_manifest, take_baseline
from orchard.sandbox.pinned import pinned
from orchard.sandbox.protocol import Backend
from orchard.sandbox.sealed import FILE, LINK, Blob, sealed_git
from orchard.sandbox.sessions import Sessions
from orchard.sandbox.transport import Transport
from orchard.sandbox.types import SandboxInfo, SandboxSpec

LARGEST = 64 << 20
"""Bytes of a file beyond which its change is left out of a diff, and named."""
_AT_ONCE = 16
_BASELINE_TTL = 600.0
_FLAGS = (
    "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/",
    "--dst-prefix=b/",
)  # fmt: skip
_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


class Diff(bytes):
    """A patch in git's form: new, deleted and binary files and modes; a rename is both. Empty: nothing changed."""

    left_out: tuple[str, ...] = ()
    """Changed files larger than ``LARGEST``, which are not in it."""

    @property
    def text(self) -> str:
        """As text, never raising: what is not UTF-8 becomes U+FFFD, so only the bytes apply again."""
        return self.decode("utf-8", "replace")


async def make_diff(transport: Transport, baseline: Baseline) -> Diff:
    """Return what changed below ``baseline.path`` since it was taken."""
    now = await fetch_manifest(transport, baseline.path, baseline.names)
    before = baseline.nodes
    changed = [path for path in sorted({*before, *now}) if not _same(before, now, path)]
    large = {path for path in changed for side in (before, now) if path in side and side[path].size > LARGEST}
    kept = [path for path in changed if path not in large]
    if not kept:
        return _diff(b"", large)
    old = await baseline.blobs(kept)
    new = await _fetch(transport, baseline.path, now, kept)
    async with sealed_git() as git:
        trees = [await git.tree("a", _encoded(old)), await git.tree("b", _encoded(new))]
        return _diff(await git.run("diff", *_FLAGS, *trees), large)


def _diff(patch: bytes, large: set[str]) -> Diff:
    made = Diff(patch)
    made.left_out = tuple(sorted(large))
    return made


def _same(before: Manifest, now: Manifest, path: str) -> bool:
    old, new = before.get(path), now.get(path)
    old_mode, new_mode = old and old.git_mode, new and new.git_mode
    if old is None or new is None or old_mode is None:
        return old_mode is None and new_mode is None
    return old.same(new)


def _encoded(blobs: dict[str, Blob]) -> Iterable[tuple[bytes, Blob]]:
    return [(os.fsencode(path), blob) for path, blob in sorted(blobs.items())]


async def _fetch(transport: Transport, root: str, now: Manifest, paths: Iterable[str]) -> dict[str, Blob]:
    """Read the present contents of ``paths``; one that vanished meanwhile counts as deleted."""
    files, limit, found = Files(transport), asyncio.Semaphore(_AT_ONCE), dict[str, Blob]()

    async def read(path: str) -> None:
        node = now[path]
        if node.type == "symlink":
            found[path] = Blob(LINK, os.fsencode(node.target or ""))
            return
        async with limit:
            try:
                found[path] = Blob(node.git_mode or FILE, await files.read(f"{root.rstrip('/')}/{path}"))
            except FileMissing:
                return

    with unwrapped():
        async with asyncio.TaskGroup() as group:
            for path in paths:
                if path in now and now[path].git_mode is not None:
                    group.create_task(read(path))
    return found


async def image_baseline(
    backend: Backend, sessions: Sessions, info: SandboxInfo, path: str, names: tuple[str, ...]
) -> Baseline:
    """Return the work tree as the image has it: from the cache, else from a throw-away sandbox of the same image."""
    if info.image_digest is None:
        return await _from_throw_away(backend, sessions, info, path, names)
    key = hashlib.sha256(json.dumps([path, *names]).encode()).hexdigest()[:24]
    folder = cache_dir() / "baselines" / info.image_digest.replace(":", "-") / key
    lock = _locks.setdefault((id(asyncio.get_running_loop()), str(folder)), asyncio.Lock())
    async with lock:  # a hundred rollouts of one task that end together make one throw-away sandbox
        kept = await asyncio.to_thread(Baseline.load, folder, path, names)
        if kept is None:
            kept = await _from_throw_away(backend, sessions, info, path, names)
            with needs_room(folder):
                await asyncio.to_thread(kept.save, folder)
    return kept


async def _from_throw_away(
    backend: Backend, sessions: Sessions, info: SandboxInfo, path: str, names: tuple[str, ...]
) -> Baseline:
    spec = SandboxSpec(
        image=pinned(info.image, info.image_digest), ttl=_BASELINE_TTL, max_ttl=_BASELINE_TTL, heartbeat=_BASELINE_TTL,
        labels={**info.labels, "purpose": "baseline"},
    )  # fmt: skip
    fresh = await backend.create(spec.validated(), new_id("baseline"))
    transport: Transport | None = None
    try:
        transport = Transport(await backend.endpoint(fresh.id), sessions=sessions)
        return await take_baseline(transport, path, names)
    except FileMissing:
        return Baseline(path, names, {}, io.BytesIO())  # the image has no such folder: all of it is new
    finally:
        await finish(_remove(backend, transport, fresh.id))


async def _remove(backend: Backend, transport: Transport | None, sandbox_id: str) -> None:
    try:
        await backend.delete(sandbox_id, wait=False)
    finally:
        if transport is not None:
            await transport.close()
