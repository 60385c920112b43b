"""How many sandboxes of a tenant live at once, over all replicas, without a lock or a leader.

Two looks. Before a Pod is made: at what this process knows, which lags behind other replicas by the time that a watch
takes. Once it is on record for a second: at a list of the API server's. Whoever then finds as many older ones as the
tenant may have gives way, before its create answers. All replicas see the same order, that of the API server's own
clock (whole seconds) and of names; a second after the record nothing can come to stand before it. So never more than
the quota are answered for; those too many exist for about a second, as many as were made while a watch lagged.
Several API servers whose clocks differ may let in as many more as are made during that difference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

from orchard.core.tasks import unwrapped
from orchard.sandbox.kubernetes import deaths, labels
from orchard.sandbox.kubernetes.cache import SELECTOR, PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.protocol import no_room

_TICK = 1.0  # seconds; the API server notes the time of a creation no finer


class Quotas:
    """Looks for one process."""

    def __init__(self, cluster: Cluster, cache: PodCache, key: ServiceKey) -> None:
        self._cluster, self._cache, self._key = cluster, cache, key
        self._posting = Counter[str]()

    @asynccontextmanager
    async def room(self, tenant: str, name: str, most: int | None) -> AsyncGenerator[None]:
        """Hold room for the Pod ``name`` while the block puts it on record; one that exists needs none.

        Raises:
            QuotaExceeded: there is none.
        """
        if most is not None:
            await self._cache.synced()
            living = len(self._living(self._cache.pods(), tenant))
            if living + self._posting[tenant] >= most and await self._cache.get(name) is None:
                raise no_room(tenant, most)
        self._posting[tenant] += 1
        try:
            yield
        finally:
            self._posting[tenant] -= 1

    async def within(self, who: Identity, most: int | None, making: Coroutine[Any, Any, Json]) -> Json:
        """Return what ``making`` returns, once the Pod, which has just come on record, is known to have room.

        Raises:
            QuotaExceeded: it has none; ``making`` was cancelled.
        """
        if most is None:
            return await making
        with unwrapped():
            async with asyncio.TaskGroup() as group:
                made = group.create_task(making)
                group.create_task(self._check(who, most))
        return made.result()

    async def _check(self, who: Identity, most: int) -> None:
        await asyncio.sleep(_TICK)
        where = f"{SELECTOR},{labels.TENANT}={who.tenant}"
        found: list[Json] = []
        async for page in self._cluster.pages(self._cluster.path("pods"), labelSelector=where):
            found += cast("list[Json]", page["items"])
        if who.name in self._living(found, who.tenant)[most:]:
            raise no_room(who.tenant, most)

    def _living(self, pods: Iterable[Json], tenant: str) -> list[str]:
        """Return the names of a tenant's living Pods, in the order of all replicas."""
        places: list[tuple[str, str]] = []
        for pod in pods:
            if part(pod, "metadata", "labels").get(labels.TENANT) != tenant or deaths.classify(pod) is not None:
                continue
            if self._key.owner(pod, labels.TENANT) is not None:
                places.append((pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
        return [name for _, name in sorted(places)]
