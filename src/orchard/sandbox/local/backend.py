"""``LocalBackend``: the backend protocol over the synchronous parts, which run in threads of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ParamSpec, TypeVar

from orchard.core.disk import needs_room
from orchard.core.errors import InvalidArgument, NotFound, SandboxGone, Unavailable
from orchard.core.ids import check_id, check_key
from orchard.sandbox.local import daemon
from orchard.sandbox.local.cgroups import Cgroups, find_cgroups
from orchard.sandbox.local.commit import Committer
from orchard.sandbox.local.doctor import require_fit
from orchard.sandbox.local.ending import Endings
from orchard.sandbox.local.images import Images
from orchard.sandbox.local.making import Maker
from orchard.sandbox.local.powers import find_powers
from orchard.sandbox.local.process import boot_id
from orchard.sandbox.local.records import Record, Store
from orchard.sandbox.local.settings import LocalSettings
from orchard.sandbox.protocol import Capabilities
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec, State

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_MAKERS = 32
"""Threads that make sandboxes: most of them wait for a pull or for their turn to launch."""
_LOOKERS = 8
"""Threads for everything short, so that no look waits behind a create."""
_ENDING_WAIT = 60.0
"""Seconds for which delete waits while another process makes or ends the sandbox."""
_LEASE_TIMEOUT = 2.0
_LATER = "it comes later to the local backend"
_EXCEPTIONS = {
    "network=open": "the local backend offers network='none' only so far",
    "disk": _LATER, "pause": _LATER, "snapshot": _LATER, "fork": _LATER, "pool": _LATER,
}  # fmt: skip


@dataclass(frozen=True)
class _Parts:
    """What is made on first use, once for each process."""

    cgroups: Cgroups | None
    endings: Endings
    images: Images
    committer: Committer
    maker: Maker
    makers: ThreadPoolExecutor
    lookers: ThreadPoolExecutor
    boot: str
    process: int


class LocalBackend:
    """Sandboxes on this machine, without a daemon: any number of processes may use one home."""

    name = "local"

    def __init__(self, settings: LocalSettings | None = None) -> None:
        """Touch nothing; the machine is looked at by the first call."""
        self.settings = settings or LocalSettings()
        self._store = Store(self.settings.home)
        self._mutex = threading.Lock()
        self._made: _Parts | None = None
        self._swept = -self.settings.sweep_every
        self._behind: set[Future[None]] = set()

    async def capabilities(self) -> Capabilities:
        """Return what this machine's local backend cannot do, by name with the reason."""
        parts = self._parts()
        missing = {"cpu", "memory", "pids"} - (parts.cgroups.controllers if parts.cgroups else frozenset[str]())
        reason = "no control group of this machine may be written to by this user"
        return Capabilities(_EXCEPTIONS | dict.fromkeys(sorted(missing), reason))

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        """Make a sandbox and return once a command works in it; the same ``key`` returns the same one.

        Raises:
            CreateFailed: with the reason; nothing is left of it.
            Conflict: another spec under the same key.
            Unsupported: the spec asks for what this machine or backend cannot do.
            MachineUnfit: the machine lacks what it takes, such as room on its disk.
        """
        spec.validated()
        check_key(key, "idempotency key")
        self._check_allowed(spec.image)
        parts = self._parts()
        parts.maker.check(spec)
        self._sweep_soon(parts)
        made = self._submit(parts.makers, parts.maker.create, spec, key)
        try:
            return (await asyncio.wrap_future(made)).info()
        except asyncio.CancelledError:  # nobody will learn of it: end it as soon as it is there
            made.add_done_callback(lambda done: self._undo(parts, done))
            raise

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return what is known, also for an hour after the end, with the reason.

        Raises:
            NotFound: no such sandbox.
        """
        parts = self._parts()
        self._sweep_soon(parts)
        record = await self._look(parts, sandbox_id)
        return await self._call(parts, self._with_lease, parts, record)

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return living sandboxes whose labels include ``labels``, oldest first."""
        if isinstance(limit, bool) or not 1 <= limit <= 1000:
            raise InvalidArgument(f"limit must be 1 to 1000, not {limit!r}", field="limit")
        parts = self._parts()
        self._sweep_soon(parts)
        return await self._call(parts, self._page, parts, dict(labels or {}), limit, cursor)

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        """End it; with ``wait``, return once nothing of it is left. Deleting what has ended is fine.

        Raises:
            NotFound: no such sandbox, ever.
            Unavailable: another process has been making or ending it for a minute.
        """
        parts = self._parts()
        check_id(sandbox_id, "sandbox id")
        await self._call(parts, self._store.read, sandbox_id)
        done = self._later(parts, self._delete, parts, sandbox_id)
        if wait:
            await asyncio.shield(asyncio.wrap_future(done))

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Return how to reach it.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended; with the reason.
            Unavailable: it is still being made.
        """
        record = await self._look(self._parts(), sandbox_id)
        if record.state is State.GONE:
            raise _gone(record)
        if record.state is not State.READY:
            raise Unavailable(f"sandbox {sandbox_id} is still {record.state}", hint="wait until it is ready")
        sent = daemon.headers(record.id, self._store.token(record.id))
        return Endpoint(base=f"unix:{record.socket}", prefix="/v1", headers=sent, sandbox_id=record.id)

    async def commit(self, sandbox_id: str, name: str) -> str:
        """Stop the sandbox and turn its layer of changes into an image layer over its image.

        Returns the new image's digest, usable as ``image`` at once, as is ``name``. The sandbox is gone then; the same
        commit again returns the same digest while the end is remembered.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended, and its changes with it.
            Unsupported: its image is a folder (``host``, ``dir:``).
        """
        parts = self._parts()
        check_id(sandbox_id, "sandbox id")
        return await asyncio.wrap_future(self._submit(parts.makers, parts.committer.commit, sandbox_id, name))

    async def resolve_image(self, image: str) -> str | None:
        """Fetch the image if needed; return its digest, or None where it has none (``host``, ``dir:``).

        Raises:
            CreateFailed: image_not_found, image_auth, image_invalid, wrong_arch, registry_unreachable.
        """
        self._check_allowed(image)
        parts = self._parts()
        found = self._submit(parts.makers, parts.images.fetch, image)
        return (await asyncio.wrap_future(found)).digest

    async def close(self) -> None:
        """Wait for what was begun, and end this object's threads. Sandboxes live on."""
        parts, self._made = self._made, None
        if parts is None or parts.process != os.getpid():
            return
        await asyncio.to_thread(parts.makers.shutdown)
        while self._behind:
            await asyncio.gather(*map(asyncio.wrap_future, list(self._behind)), return_exceptions=True)
        await asyncio.to_thread(parts.lookers.shutdown)

    def _check_allowed(self, image: str) -> None:
        if not self.settings.allow_host_dirs and (image == "host" or image.startswith("dir:")):
            raise InvalidArgument(
                f"image {image!r} shows folders of the host, which is not allowed here", field="image"
            )

    def _parts(self) -> _Parts:
        with self._mutex:
            if self._made is None or self._made.process != os.getpid():
                self._made = self._make_parts()
            return self._made

    def _make_parts(self) -> _Parts:
        powers, cgroups = find_powers(), find_cgroups()
        require_fit(self.settings, powers)
        with needs_room(self.settings.home):
            self._store.prepare()
        images = Images(self.settings, powers)
        endings = Endings(self.settings, self._store, powers, cgroups)
        return _Parts(
            cgroups=cgroups,
            endings=endings,
            images=images,
            committer=Committer(self._store, images.storage, powers, endings),
            maker=Maker(self.settings, self._store, powers, cgroups, images.fetch),
            makers=ThreadPoolExecutor(_MAKERS, "orchard-make"),
            lookers=ThreadPoolExecutor(_LOOKERS, "orchard-look"),
            boot=boot_id(),
            process=os.getpid(),
        )

    def _submit(
        self, threads: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        def told() -> T:
            with needs_room(self.settings.home):
                return work(*args, **kwargs)

        return threads.submit(told)

    async def _call(self, parts: _Parts, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._submit(parts.lookers, work, *args, **kwargs))

    def _later(self, parts: _Parts, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Start work that goes on whatever becomes of the caller; ``close`` waits for it."""
        done = self._submit(parts.lookers, work, *args, **kwargs)
        self._behind.add(done)
        done.add_done_callback(self._behind.discard)
        done.add_done_callback(_log_failure)
        return done

    async def _look(self, parts: _Parts, sandbox_id: str) -> Record:
        return await self._call(parts, parts.endings.look, check_id(sandbox_id, "sandbox id"))

    def _undo(self, parts: _Parts, made: Future[Record]) -> None:
        if not made.cancelled() and made.exception() is None:
            self._later(parts, self._delete, parts, made.result().id)

    def _delete(self, parts: _Parts, sandbox_id: str) -> None:
        deadline = time.monotonic() + _ENDING_WAIT
        while not parts.endings.delete(sandbox_id):
            if time.monotonic() > deadline:
                raise Unavailable(f"sandbox {sandbox_id} is being made or ended by another process")
            time.sleep(0.01)  # noqa: TID251 — flock has no wait with a deadline

    def _sweep_soon(self, parts: _Parts) -> None:
        with self._mutex:
            if time.monotonic() - self._swept < self.settings.sweep_every:
                return
            self._swept = time.monotonic()
        self._later(parts, parts.endings.sweep)

    def _page(self, parts: _Parts, labels: dict[str, str], limit: int, cursor: str | None) -> Page:
        items: list[SandboxInfo] = []
        for sandbox_id in self._store.ids():
            if cursor is not None and sandbox_id <= cursor:
                continue
            try:
                record = parts.endings.look(sandbox_id)
                if record.state is State.GONE or not labels.items() <= dict(record.spec["labels"]).items():
                    continue
                if len(items) == limit:
                    return Page(items, items[-1].id)
                info = self._with_lease(parts, record)
            except NotFound:  # it ended, or is not recorded yet
                continue
            if info.state is not State.GONE:
                items.append(info)
        return Page(items)

    def _with_lease(self, parts: _Parts, record: Record) -> SandboxInfo:
        """Fill in when it ends: the lease is sandboxd's."""
        info = record.info()
        if record.state is not State.READY:
            return info
        sent = daemon.headers(record.id, self._store.token(record.id))
        try:
            lease = daemon.ask(record.socket, "/v1/lease", sent, _LEASE_TIMEOUT)
        except Unavailable:  # it has ended since, or is busy: then what is on record stands
            return parts.endings.look(record.id).info()
        return replace(info, expires_at=datetime.fromisoformat(str(lease["expires_at"])))


def _log_failure(done: Future[None]) -> None:
    """Keep what nobody waits for from failing in silence; the next sweep tries it again."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _log.warning("work behind the scenes of the local backend failed: %s", error)


def _gone(record: Record) -> SandboxGone:
    detail = f": {record.detail}" if record.detail else ""
    return SandboxGone(f"sandbox {record.id} has ended{detail}", reason=record.reason, at=record.ended_at)
