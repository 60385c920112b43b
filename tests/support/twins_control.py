"""What the twins break on the control path: create, get, list, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from orchard.core.errors import CreateFailed, NotFound, SandboxGone
from orchard.core.ids import new_id
from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.protocol import Backend
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec, State


class Slow(Wrapped):
    """Takes its time to say that a sandbox is gone."""

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.inner.get(sandbox_id)
        if info.reason == "deleted":
            await asyncio.sleep(3)
        return info


class NewKeys(Wrapped):
    """Forgets idempotency keys."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        return await self.inner.create(spec, new_id("key"))


class LongerTtl(Wrapped):
    """Rounds a short ttl up."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        return await self.inner.create(replace(spec, ttl=60) if spec.ttl == 4 else spec, key)


class Immortal(Wrapped):
    """Says that what others made is alive, whatever became of it."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._mine: set[str] = set()

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        info = await self.inner.create(spec, key)
        self._mine.add(info.id)
        return info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.inner.get(sandbox_id)
        return info if sandbox_id in self._mine else replace(info, state=State.READY, reason=None)


class DeleteOnce(Wrapped):
    """Does not know a sandbox that it has deleted."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._deleted: set[str] = set()

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        if sandbox_id in self._deleted:
            raise NotFound(f"no sandbox {sandbox_id}")
        self._deleted.add(sandbox_id)
        await self.inner.delete(sandbox_id, wait=wait)


class Litter(Wrapped):
    """Leaves a sandbox behind when a create fails."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        try:
            return await self.inner.create(spec, key)
        except CreateFailed:
            if "orchard.probe" in spec.labels:
                await self.inner.create(replace(spec, image="host", ttl=5), new_id("key"))
            raise


class Restarts(Wrapped):
    """Puts a blank sandbox in the place of one whose daemon died."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._specs: dict[str, SandboxSpec] = {}
        self._now: dict[str, str] = {}

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        info = await self.inner.create(spec, key)
        self._specs[info.id] = spec
        return info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.inner.get(self._now.get(sandbox_id, sandbox_id))
        if info.state is State.GONE and info.reason not in ("deleted", "ttl", "idle", "heartbeat"):
            fresh = await self.inner.create(self._specs[sandbox_id], new_id("key"))
            self._now[sandbox_id] = fresh.id
            return replace(fresh, id=sandbox_id)
        return replace(info, id=sandbox_id)

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        with suppress(SandboxGone):
            return await self.inner.endpoint(self._now.get(sandbox_id, sandbox_id))
        await self.get(sandbox_id)
        return await self.inner.endpoint(self._now.get(sandbox_id, sandbox_id))


class OtherReason(Wrapped):
    """Does not tell a private image from a missing one."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        try:
            return await self.inner.create(spec, key)
        except CreateFailed as error:
            if error.reason != "image_auth":
                raise
            raise CreateFailed(error.message, reason="image_not_found") from error


class NoPulling(Wrapped):
    """Does not say that it pulls."""

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        page = await self.inner.list(labels, limit=limit, cursor=cursor)
        return replace(page, items=[replace(one, state=State.STARTING) for one in page.items])


class FiftiethFails(Wrapped):
    """One of fifty creates fails."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._count = 0

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self._count += spec.ttl == 600
        if spec.ttl == 600 and self._count % 50 == 0:
            raise CreateFailed("one too many at once", reason="start_timeout")
        return await self.inner.create(spec, key)


_beating: set[str] = set()


class Beating(Wrapped):
    """Notes the sandboxes with a short heartbeat window."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        info = await self.inner.create(spec, key)
        if spec.heartbeat == 10:
            _beating.add(info.id)
        return info


def renewal_lost(method: str, target: str, sandbox_id: str) -> str | int | None:
    return 200 if (method, target) == ("POST", "/v1/lease") and sandbox_id in _beating else None
