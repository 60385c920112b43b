"""The control plane's work, apart from HTTP: tenants, quotas and keys around a backend."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from orchard.core.errors import CreateFailed, InvalidArgument, OrchardError, Unsupported
from orchard.core.ids import new_id
from orchard.sandbox.protocol import Backend, Shared
from orchard.sandbox.remote.models import AccessBody, DigestBody
from orchard.sandbox.types import Page, SandboxInfo, SandboxSpec, State, check_labels
from orchard.service.datapath import DataPath
from orchard.service.directory import Directory
from orchard.service.images import ImageRules
from orchard.service.keys import KEY_LABEL, TENANT_LABEL, Caller
from orchard.service.late import Late
from orchard.service.limits import Quotas
from orchard.service.metrics import Metrics
from orchard.service.once import Once, scoped

RESERVED = "orchard/"
_POLL = (0.03, 0.5)  # seconds between looks while waiting for a state: the first, and the longest
_LATE = tuple(float(2**power) for power in range(9))  # seconds between looks for what comes late
_ACCESS_SECONDS = 600.0
MOST_WAIT = 60.0


class Control:
    """What the routes of the control plane do."""

    def __init__(
        self, backend: Backend, directory: Directory, datapath: DataPath, metrics: Metrics, images: ImageRules
    ) -> None:
        self.backend, self.metrics, self.once = backend, metrics, Once()
        self._directory, self._datapath, self._quotas = directory, datapath, Quotas(backend)
        self._images = images
        self._late = Late()

    async def create(self, spec: SandboxSpec, caller: Caller, key: str | None, wait: float | None) -> SandboxInfo:
        """Make a sandbox of the caller's tenant; wait for it ``wait`` seconds at most, None: as long as it takes.

        Raises:
            QuotaExceeded: the tenant has too many alive.
            InvalidArgument: a reserved label, or an image of this machine.
            StillRunning: it is still being made; asking again under the same key waits on.
            NotFound: made under the key before, and gone for so long that nothing is known of it.
            OrchardError: as the backend says.
        """
        self._images.check(spec.image, caller)
        check_free(spec.labels)
        name = scoped(caller.tenant, "create", key) or new_id("key")
        own = replace(spec, labels={**spec.labels, TENANT_LABEL: caller.tenant, KEY_LABEL: name})

        made: list[SandboxInfo] = []

        async def work() -> str:
            made.append(await self._timed(own, name, caller))
            return made[0].id

        sandbox_id = await self.once.run(key and name, repr(own), work, wait=wait)
        return shown(made[0] if made else await self.backend.get(sandbox_id))  # a repeat: as it is by now

    async def undo_create(self, key: str, caller: Caller) -> None:
        """Give the create under ``key`` up, whatever became of it. An unknown key is fine."""
        name = scoped(caller.tenant, "create", key)
        assert name is not None
        await self.once.undo(name)
        await self._end_made(name, caller)
        if isinstance(self.backend, Shared):
            self._late.start(caller.tenant, name, self._end_late(name, caller))

    async def _end_made(self, name: str, caller: Caller) -> None:
        made = await self.backend.list({TENANT_LABEL: caller.tenant, KEY_LABEL: name})
        for info in made.items:
            await self.delete(info.id, caller, wait=True, key=None)

    async def _end_late(self, name: str, caller: Caller) -> None:
        """End what another replica makes under a key that was given up here; it may have been waiting for its turn."""
        for pause in _LATE:
            await asyncio.sleep(pause)
            with contextlib.suppress(OrchardError):  # the next look finds it
                await self._end_made(name, caller)

    async def close(self, grace: float) -> None:
        """Take no more work; give what is under way ``grace`` seconds."""
        if isinstance(self.backend, Shared):
            self.backend.leave()
        await self.once.close(grace)
        await self._late.close()

    async def _timed(self, spec: SandboxSpec, key: str, caller: Caller) -> SandboxInfo:
        start = time.monotonic()
        try:
            info = await self._quotas.create(spec, key, caller)
        except OrchardError as error:
            reason = error.reason if isinstance(error, CreateFailed) else error.code
            self.metrics.create_failures.labels(reason or "unknown").inc()
            raise
        self.metrics.create_seconds.observe(time.monotonic() - start)
        return info

    async def get(self, sandbox_id: str, caller: Caller, wait: float, state: State | None) -> SandboxInfo:
        """Return what is known; with ``wait``, once it is in ``state`` or gone, or the seconds have passed."""
        deadline, pause = time.monotonic() + wait, _POLL[0]
        while True:
            info = await self._directory.info(sandbox_id, caller)
            left = deadline - time.monotonic()
            if info.state in (state, State.GONE) or left <= 0:
                return shown(info)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _POLL[1])

    async def list(self, labels: dict[str, str], caller: Caller, limit: int, cursor: str | None) -> Page:
        """Return one page of the tenant's living sandboxes."""
        check_free(check_labels(labels))
        page = await self.backend.list({**labels, TENANT_LABEL: caller.tenant}, limit=limit, cursor=cursor)
        return Page([shown(info) for info in page.items], page.next)

    async def delete(self, sandbox_id: str, caller: Caller, *, wait: bool, key: str | None) -> None:
        """End a sandbox."""
        await self._directory.info(sandbox_id, caller)

        async def work() -> None:
            self._directory.forget(sandbox_id)
            await self.backend.delete(sandbox_id, wait=wait)
            self._directory.forget(sandbox_id)
            self._quotas.forget(caller.tenant, sandbox_id)

        await self.once.run(scoped(caller.tenant, "delete", key), f"{sandbox_id} {wait}", work)

    async def extend(self, sandbox_id: str, caller: Caller, ttl: float, key: str | None) -> dict[str, Any]:
        """Set a sandbox's end to ``ttl`` seconds from now; return its lease."""
        return await self.once.run(
            scoped(caller.tenant, "extend", key), f"{sandbox_id} {ttl}",
            lambda: self._datapath.call(sandbox_id, caller, "/v1/lease", {"ttl_s": ttl}),
        )  # fmt: skip

    async def access(self, sandbox_id: str, caller: Caller, key: str | None) -> AccessBody:
        """Return a sandbox's own address and a token for it that lasts ten minutes.

        Raises:
            Unsupported: nobody but this service reaches it.
        """
        entry = await self._directory.find(sandbox_id, caller)
        if entry.endpoint.base.startswith("unix:"):
            raise Unsupported("a sandbox of the service's own machine is reached through the service only")

        async def work() -> AccessBody:
            token, expires = secrets.token_urlsafe(32), datetime.now(UTC) + timedelta(seconds=_ACCESS_SECONDS)
            body = {"sha256": hashlib.sha256(token.encode()).hexdigest(), "expires_s": _ACCESS_SECONDS}
            await self._datapath.call(sandbox_id, caller, "/v1/tokens", body)
            return AccessBody(base=entry.endpoint.base, token=token, expires_at=expires)

        return await self.once.run(scoped(caller.tenant, "access", key), sandbox_id, work)

    async def commit(
        self, sandbox_id: str, name: str, caller: Caller, key: str | None, wait: float | None
    ) -> DigestBody:
        """Stop a sandbox and make an image of it; return its digest.

        Raises:
            StillRunning: it goes on after ``wait`` seconds; asking again under the same key waits on.
        """
        await self._directory.info(sandbox_id, caller)
        self._images.check_new(name, caller)

        async def work() -> DigestBody:
            digest = await self.backend.commit(sandbox_id, name)
            self._directory.forget(sandbox_id)
            return DigestBody(digest=digest)

        return await self.once.run(scoped(caller.tenant, "commit", key), f"{sandbox_id} {name}", work, wait=wait)

    async def fetch_image(self, image: str, caller: Caller, key: str | None, wait: float | None) -> DigestBody:
        """Fetch an image; return its digest.

        Raises:
            StillRunning: as ``commit``.
        """
        self._images.check(image, caller)

        async def work() -> DigestBody:
            return DigestBody(digest=await self.backend.resolve_image(image))

        return await self.once.run(scoped(caller.tenant, "image", key), image, work, wait=wait)


def check_free(labels: object) -> None:
    """Return if no label is one of the service's own.

    Raises:
        InvalidArgument: one is.
    """
    for name in labels if isinstance(labels, dict) else ():
        if str(name).startswith(RESERVED):
            raise InvalidArgument(f"labels that begin with {RESERVED!r} are the service's own", field="labels")


def shown(info: SandboxInfo) -> SandboxInfo:
    """Return it without the service's own labels."""
    return replace(info, labels={name: value for name, value in info.labels.items() if not name.startswith(RESERVED)})
