"""Rate per key and quota per tenant."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from orchard.core.errors import RateLimited
from orchard.sandbox.protocol import Backend, Shared, no_room
from orchard.sandbox.types import SandboxInfo, SandboxSpec
from orchard.service.keys import KEY_LABEL, TENANT_LABEL, Caller

_BURST = 2.0  # seconds of the rate that may come at once
_COUNT_AFTER = 5.0  # seconds for which a count of living sandboxes is believed; other replicas create too


class Rates:
    """A token bucket per key."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: Caller) -> None:
        """Count one request.

        Raises:
            RateLimited: the key's rate is used up; ``retry_after`` says for how long.
        """
        if caller.rate is None:
            return
        now, most = time.monotonic(), max(1.0, caller.rate * _BURST)
        level, at = self._buckets.get(caller.key_name, (most, now))
        level = min(most, level + (now - at) * caller.rate)
        if level < 1:
            self._buckets[caller.key_name] = (level, now)
            wait = (1 - level) / caller.rate
            raise RateLimited(f"key {caller.key_name!r} may send {caller.rate:g} requests a second", retry_after=wait)
        self._buckets[caller.key_name] = (level - 1, now)


@dataclass
class _Use:
    """What is known of one tenant. ``alive`` may name dead ones, never lacks a living one made here."""

    alive: set[str] = field(default_factory=set[str])
    pending: int = 0
    counted_at: float = -_COUNT_AFTER
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Quotas:
    """Bounds how many sandboxes of a tenant live at once; creates under way count.

    A backend that several services share counts itself, and what this process alone knows is not asked.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tenants: defaultdict[str, _Use] = defaultdict(_Use)

    async def create(self, spec: SandboxSpec, key: str, caller: Caller) -> SandboxInfo:
        """Make a sandbox if the caller's quota has room for it.

        Raises:
            QuotaExceeded: no room.
            OrchardError: as the backend says.
        """
        if caller.quota is not None and isinstance(self._backend, Shared):
            return await self._backend.create_within(spec, key, caller.quota)
        async with self._slot(caller, key) as alive:
            info = await self._backend.create(spec, key)
            alive.add(info.id)
            return info

    @asynccontextmanager
    async def _slot(self, caller: Caller, key: str) -> AsyncGenerator[set[str]]:
        """Hold room for one create under ``key``; the body adds the new id to the set it is given.

        A sandbox that was made under the same key already, by a service that has died since, needs no room.

        Raises:
            QuotaExceeded: no room.
        """
        use = self._tenants[caller.tenant]
        if caller.quota is not None:
            async with use.lock:
                await self._make_room(use, caller, caller.quota, key)
                use.pending += 1
        else:
            use.pending += 1
        try:
            yield use.alive
        finally:
            use.pending -= 1

    async def _make_room(self, use: _Use, caller: Caller, quota: int, key: str) -> None:
        stale = time.monotonic() - use.counted_at > _COUNT_AFTER
        if stale or len(use.alive) + use.pending >= quota:
            use.alive -= await self._dead(use, caller.tenant)
        if len(use.alive) + use.pending < quota:
            return
        if not (await self._backend.list({TENANT_LABEL: caller.tenant, KEY_LABEL: key}, limit=1)).items:
            raise no_room(caller.tenant, quota)

    async def _dead(self, use: _Use, tenant: str) -> set[str]:
        """Count anew: learn of living ones and return those of ``alive``, known before the count, that are dead."""
        before, seen, cursor = set(use.alive), set[str](), None
        while True:
            page = await self._backend.list({TENANT_LABEL: tenant}, limit=1000, cursor=cursor)
            seen.update(item.id for item in page.items)
            cursor = page.next
            if cursor is None:
                break
        use.alive |= seen
        use.counted_at = time.monotonic()
        return before - seen

    def forget(self, tenant: str, sandbox_id: str) -> None:
        """Note that a sandbox was deleted."""
        self._tenants[tenant].alive.discard(sandbox_id)
