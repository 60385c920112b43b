"""``Orchard``: the door to sandboxes, over the embedded local backend or a service."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from orchard.core.config import env
from orchard.core.errors import InvalidArgument, NotFound, OrchardError
from orchard.core.ids import check_id, check_key, new_id
from orchard.core.tasks import finish
from orchard.sandbox.backends import open_backend
from orchard.sandbox.box import Sandbox, gone
from orchard.sandbox.group import MOST, OwnedSandboxes, group_name
from orchard.sandbox.lease import Keeper
from orchard.sandbox.protocol import Backend, Capabilities
from orchard.sandbox.sessions import Sessions
from orchard.sandbox.types import GROUP_LABEL, OWNER_WINDOW, Network, SandboxInfo, SandboxSpec, State, parse_size

log = logging.getLogger(__name__)


class SandboxOptions(TypedDict, total=False):
    """What a sandbox may be given besides its image. See ``SandboxSpec`` for each."""

    cpu: float
    memory: int | str
    """Bytes, or ``"2GiB"``."""
    disk: int | str
    pids: int
    env: Mapping[str, str]
    user: str
    workdir: str
    labels: Mapping[str, str]
    network: Network
    ttl: float
    max_ttl: float
    idle: float
    create_timeout: float
    entrypoint: bool | Sequence[str]
    tools: Sequence[str]


class Orchard:
    """Makes and finds sandboxes. Cheap to make; serves several event loops and threads, and a fork after use.

    Args:
        url: of a service; ``ORCHARD_URL`` by default; neither: the backend that ``ORCHARD_BACKEND`` names, embedded,
            else the local one.
        api_key: for the service; ``ORCHARD_API_KEY`` by default.
        backend: use this one, by name (``"local"``) or as an object, which stays the caller's to close.
        labels: of every sandbox made through this door, besides its own.
        direct: in the cluster of the sandboxes: speak with them at their own addresses, with short-lived tokens from
            the service, and through it only where that fails.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        backend: Backend | str | None = None,
        labels: Mapping[str, str] | None = None,
        direct: bool = False,
    ) -> None:
        url = url or (env("ORCHARD_URL") if backend is None else None)
        self._made = backend is None or isinstance(backend, str)
        if backend is None or isinstance(backend, str):
            name = backend or ("remote" if url else env("ORCHARD_BACKEND", "local") or "local")
            backend = open_backend(name, url=url, api_key=api_key or env("ORCHARD_API_KEY"), direct=direct)
        self._backend: Backend = backend
        self._labels = dict(labels or {})
        self._sessions = Sessions()
        self._keeper = Keeper()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finish(self.close())

    @property
    def backend(self) -> Backend:
        """What makes the sandboxes."""
        return self._backend

    def sandbox(self, image: str, *, key: str | None = None, **options: Unpack[SandboxOptions]) -> OwnedSandbox:
        """Return a block that owns a sandbox: ``async with orchard.sandbox("python:3.12") as box``.

        It is made on entering and deleted on leaving, also when cancelled. The block renews its lease every 10 s;
        30 s without a renewal, as when this program dies, end it.

        Args:
            image: see ``SandboxSpec.image``.
            key: idempotency key: the same again gives the same sandbox. Made up by default.
            **options: see ``SandboxOptions``.

        Raises:
            CreateFailed: on entering; ``reason`` says why, and nothing is left of it.
            InvalidArgument: at once; ``field`` names it.
        """
        return OwnedSandbox(
            self, self._keeper, self._labelled(spec_of(image, options, heartbeat=OWNER_WINDOW)), _key(key)
        )

    def sandboxes(
        self, image: str, count: int, *, key: str | None = None, **options: Unpack[SandboxOptions]
    ) -> OwnedSandboxes:
        """Return a block that owns ``count`` alike, all or none: ``async with orchard.sandboxes("x", 8) as boxes``.

        Each is as one of ``sandbox``. Where a cluster has no room for two groups at once, the younger makes way and
        comes again, for ``create_timeout`` seconds, so that they never wait for each other with a part each.

        Args:
            image: see ``SandboxSpec.image``.
            count: from 1 to 1000.
            key: idempotency key of the group. Made up by default.
            **options: see ``SandboxOptions``.

        Raises:
            CreateFailed: on entering, for the first that failed; nothing is left of any.
            QuotaExceeded: on entering: not all of them have room.
            InvalidArgument: at once; ``field`` names it.
        """
        if isinstance(count, bool) or not 1 <= count <= MOST:
            raise InvalidArgument(f"count must be 1 to {MOST}, not {count!r}", field="count")
        key = _key(key)
        spec = self._labelled(spec_of(image, options, heartbeat=OWNER_WINDOW))
        spec = replace(spec, labels={**spec.labels, GROUP_LABEL: group_name(key)})

        def blocks(attempt: int) -> list[OwnedSandbox]:
            keys = (group_name(f"{key} {attempt} {number}") for number in range(count))
            return [OwnedSandbox(self, self._keeper, spec, each) for each in keys]

        return OwnedSandboxes(blocks, spec.create_timeout)

    async def create(self, image: str, *, key: str | None = None, **options: Unpack[SandboxOptions]) -> Sandbox:
        """Make a sandbox without an owner: only ``ttl``, ``idle`` and ``delete`` end it. Cancelled, it leaves nothing.

        Args:
            image: see ``SandboxSpec.image``.
            key: idempotency key: the same again gives the same sandbox, also after an error. Made up by default, and
                then nothing is left after an error.
            **options: see ``SandboxOptions``.

        Raises:
            CreateFailed: ``reason`` says why; nothing is left of it.
            OrchardError: as the backend's ``create``.
        """
        return await self.create_from(spec_of(image, options, heartbeat=None), key)

    async def create_from(self, spec: SandboxSpec, key: str | None = None) -> Sandbox:
        """Make a sandbox from a whole ``SandboxSpec``; as ``create``."""
        info = await self._backend.create(self._labelled(spec), _key(key))
        try:
            return await self.hold(info)
        except BaseException as error:
            if key is None or not isinstance(error, OrchardError):  # else whoever has the key finds it again
                await finish(_give_up(self._backend, info.id))
            raise

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return what is known of a sandbox, also after its end.

        Raises:
            NotFound: no such sandbox.
        """
        return await self._backend.get(check_id(sandbox_id, "sandbox_id"))

    async def attach(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that someone made. Attaching owns nothing and changes no time.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended; with the reason.
        """
        info = await self.get(sandbox_id)
        if info.state is State.GONE:
            raise gone(info)
        return await self.hold(info)

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Return all living sandboxes whose labels include ``labels``, oldest first."""
        found: list[SandboxInfo] = []
        cursor: str | None = None
        while True:
            page = await self._backend.list(labels, limit=1000, cursor=cursor)
            found += page.items
            if (cursor := page.next) is None:
                return found

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        """End a sandbox; with ``wait``, return once nothing of it is left. Deleting twice is fine.

        Raises:
            NotFound: no such sandbox, ever.
        """
        await self._backend.delete(check_id(sandbox_id, "sandbox_id"), wait=wait)

    async def capabilities(self) -> Capabilities:
        """Return what this backend cannot do, by name with the reason."""
        return await self._backend.capabilities()

    async def close(self) -> None:
        """Close this event loop's connections. Sandboxes live on, and the object may be used again."""
        await self._sessions.close()
        if self._made:
            await self._backend.close()

    async def hold(self, info: SandboxInfo) -> Sandbox:
        """Return a handle to the sandbox that ``info`` tells of; as ``attach``, without asking for the info."""
        return Sandbox(info, await self._backend.endpoint(info.id), self._backend, self._sessions)

    def _labelled(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, labels=self._labels | dict(spec.labels)).validated()


class OwnedSandbox:
    """The block that owns one sandbox; see ``Orchard.sandbox``."""

    def __init__(self, orchard: Orchard, keeper: Keeper, spec: SandboxSpec, key: str) -> None:
        self._orchard, self._keeper, self._spec, self._key = orchard, keeper, spec, key
        self._box: Sandbox | None = None
        self._pid = os.getpid()

    async def __aenter__(self) -> Sandbox:
        backend = self._orchard.backend
        info = await backend.create(self._spec, self._key)
        try:
            self._box = box = await self._orchard.hold(info)
        except BaseException:  # cancelled in between: nobody would ever end it
            await finish(_give_up(backend, info.id))
            raise
        self._keeper.add(box)
        return box

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._box is None or self._pid != os.getpid():
            return  # a fork inherits the block, but not the sandbox
        box, self._box = self._box, None
        self._keeper.drop(box)
        try:
            await finish(box.delete())
        except NotFound:
            return  # it ended so long ago that nobody knows it any more
        except OrchardError as failure:
            if error is None:
                raise
            log.warning("sandbox %s is left to end by itself: %s", box.id, failure)  # the block's own error goes on


def spec_of(image: str, options: SandboxOptions, *, heartbeat: float | None) -> SandboxSpec:
    """Return the checked spec of an image and its options.

    Raises:
        InvalidArgument: ``field`` names it.
    """
    unknown = set(options) - set(SandboxOptions.__annotations__)
    if unknown:
        raise InvalidArgument(f"a sandbox has no option {', '.join(sorted(unknown))}", field=min(unknown))
    # None leaves an option out, but the network: whether None is none or no limit, nobody could tell
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None or name == "network"}
    given |= {name: parse_size(given[name], name) for name in ("memory", "disk") if name in given}
    return SandboxSpec(image=image, heartbeat=heartbeat, **given).validated()


async def _give_up(backend: Backend, sandbox_id: str) -> None:
    """End a sandbox that nobody will hold; the error that is on its way goes before one of this."""
    try:
        await backend.delete(sandbox_id, wait=False)
    except OrchardError as failure:
        log.warning("sandbox %s is left to end by itself: %s", sandbox_id, failure)


def _key(key: str | None) -> str:
    return check_key(key, "key") if key is not None else new_id("key")
