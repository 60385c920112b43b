"""How many sandboxes of a tenant live at once, over all replicas, without a lock or a leader.

Two looks. Before a Pod is made: at what this process knows, which lags behind other replicas by the time that a watch
takes. Once it is on record for a second: at all that is on record by then. Whoever then finds as many older ones as
the tenant may have gives way, before its create answers. All replicas see the same order, that of the API server's own
clock (whole seconds) and of names. So never more than the quota are answered for; those too many exist for about a
second, as many as were made while a watch lagged.

The API server notes the time before its webhooks have had their say, and writes afterwards. So the second look comes
later by as long as this Pod's own request took. Two things may yet come to stand before it, and let in as many more:
a Pod whose request takes more than twice as long, and one whose time another API server notes, whose clock is behind.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from orchard.core.tasks import unwrapped
from orchard.sandbox.kubernetes import deaths, labels
from orchard.sandbox.kubernetes.cache import SELECTOR, PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.protocol import no_room

_Living: TypeAlias = dict[str, str]
"""Times of creation by the names of living Pods."""
_TICK = 1.2  # seconds; the API server notes the time of a creation in whole ones, and not all requests take as long
_LONGEST_WAY = 10.0  # seconds; what the API server leaves a webhook by default
_FEW = 100  # living Pods of a tenant up to which a list of them costs less than a wait for the watch
_SILENCE = 1.0  # seconds that the watch is waited for


class Quotas:
    """Looks for one process."""

    def __init__(self, cluster: Cluster, cache: PodCache, key: ServiceKey) -> None:
        self._cluster, self._cache, self._key = cluster, cache, key
        self._posting = defaultdict[str, list[str]](list)
        self._living = defaultdict[str, _Living](dict)
        cache.listeners.append(self._see)

    def _see(self, old: Json | None, new: Json | None) -> None:
        if old is not None:
            self._living[_tenant(old)].pop(old["metadata"]["name"], None)
            if not self._living[_tenant(old)]:
                del self._living[_tenant(old)]
        if new is not None and self._lives(new):
            self._living[_tenant(new)][new["metadata"]["name"]] = new["metadata"]["creationTimestamp"]

    @asynccontextmanager
    async def room(self, tenant: str, name: str, most: int | None) -> AsyncGenerator[None]:
        """Hold room for the Pod ``name`` while the block puts it on record; one that exists needs none.

        Raises:
            QuotaExceeded: there is none.
        """
        if most is not None:
            await self._cache.synced()
            taken = {*self._living.get(tenant, ()), *self._posting.get(tenant, ())}  # one may be in both
            if len(taken) >= most and name not in taken:
                pod = await self._cache.get(name)
                if pod is None or deaths.undone(pod):
                    raise no_room(tenant, most)
        self._posting[tenant].append(name)
        try:
            yield
        finally:
            self._posting[tenant].remove(name)
            if not self._posting[tenant]:
                del self._posting[tenant]

    async def within(self, who: Identity, most: int | None, took: float, making: Coroutine[Any, Any, Json]) -> Json:
        """Return what ``making`` returns, once the Pod is known to have room.

        It has just come on record, within ``took`` seconds.

        Raises:
            QuotaExceeded: it has none; ``making`` was cancelled.
        """
        if most is None:
            return await making
        with unwrapped():
            async with asyncio.TaskGroup() as group:
                made = group.create_task(making)
                group.create_task(self._check(who, most, took))
        return made.result()

    async def _check(self, who: Identity, most: int, took: float) -> None:
        await asyncio.sleep(_TICK + min(took, _LONGEST_WAY))
        if len(self._living.get(who.tenant, ())) > _FEW and await self._told():
            living: Mapping[str, str] = self._living.get(who.tenant, {})
        else:
            living = await self._listed(who.tenant)
        own = living.get(who.name)
        if own is not None and sum((at, name) < (own, who.name) for name, at in living.items()) >= most:
            raise no_room(who.tenant, most)

    async def _told(self) -> bool:
        """Return True once the watch has told all that is on record by now; False: it says nothing, so who knows."""
        page = await self._cluster.get(self._cluster.path("pods"), limit="1")
        try:
            async with asyncio.timeout(_SILENCE):
                await self._cache.reached(str(page["metadata"]["resourceVersion"]))
        except TimeoutError:
            return False
        return True

    async def _listed(self, tenant: str) -> _Living:
        living: _Living = {}
        where = f"{SELECTOR},{labels.TENANT}={tenant}"
        async for page in self._cluster.pages(self._cluster.path("pods"), labelSelector=where):
            metadata = [pod["metadata"] for pod in page["items"] if self._lives(pod)]
            living |= {each["name"]: each["creationTimestamp"] for each in metadata}
        return living

    def _lives(self, pod: Json) -> bool:
        """Return True if it is a living Pod of ours, of whatever tenant."""
        return deaths.classify(pod) is None and self._key.owner(pod, labels.TENANT) is not None


def _tenant(pod: Json) -> str:
    return str(part(pod, "metadata", "labels").get(labels.TENANT, ""))
