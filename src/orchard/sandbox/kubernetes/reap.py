"""Removing what has had its time: by any replica, by a CronJob, by hand; as often as one likes.

Only Pods that carry our proof are touched, each by its uid, so that a Pod which takes its name meanwhile is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orchard.core.errors import OrchardError, RateLimited, Unavailable
from orchard.sandbox.kubernetes import labels
from orchard.sandbox.kubernetes.cache import SELECTOR, PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.deaths import UNDONE_GRACE, Death, classify, parse_time
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.pod import DEADLINE, notes
from orchard.sandbox.kubernetes.tombstones import Tombstones, has_run

_log = logging.getLogger(__name__)
_EVERY_SECONDS = 30.0
_LATE_SECONDS = 60.0  # that the kubelet has to keep activeDeadlineSeconds by itself


@dataclass(frozen=True)
class Reaped:
    """One Pod that was removed."""

    id: str
    pod: str
    why: str
    """``ended``, ``never_started`` (nobody waits for it any more), ``overdue`` (it outlived its longest time)."""
    reason: str | None
    """One of ``GONE_REASONS``; None of one that never ran."""


def overdue(pod: Json, now: datetime) -> str | None:
    """Return why the Pod is to be removed, as in ``Reaped.why``, or None."""
    status, metadata = part(pod, "status"), pod["metadata"]
    if metadata.get("deletionTimestamp"):
        return None
    if classify(pod) is not None:
        return "ended"
    deadline = parse_time(notes(pod).get(DEADLINE))
    if status.get("phase") == "Pending" and not has_run(pod) and deadline is not None and now > deadline:
        return "never_started"
    started, most = parse_time(status.get("startTime")), pod["spec"].get("activeDeadlineSeconds")
    if started is not None and most is not None and now > started + timedelta(seconds=most + _LATE_SECONDS):
        return "overdue"
    return None


class Reaper:
    """Removes Pods of ours whose time is over, once their ends are written down."""

    def __init__(self, cluster: Cluster, key: ServiceKey, tombstones: Tombstones) -> None:
        self._cluster, self._key, self._tombstones = cluster, key, tombstones

    async def once(self) -> list[Reaped]:
        """Look at all Pods of the namespace, remove what is to be removed, and return it.

        Raises:
            OrchardError: the API server does not answer, or refuses to remove one; the others are removed.
        """
        pods: list[Json] = []
        async for page in self._cluster.pages(self._cluster.path("pods"), labelSelector=SELECTOR):
            pods += page["items"]
        return await self._remove(pods)

    async def keep(self, cache: PodCache) -> None:
        """Do so again and again with what the cache knows, until cancelled."""
        await cache.synced()
        while True:
            try:
                await self._remove(cache.pods())
            except OrchardError as error:
                _log.warning("reaping is tried again later: %s", error)
            await asyncio.sleep(_EVERY_SECONDS * random.uniform(0.5, 1.5))  # replicas keep out of step

    async def _remove(self, pods: Iterable[Json]) -> list[Reaped]:
        now, removed = datetime.now(UTC), list[Reaped]()
        refused: OrchardError | None = None
        for pod in pods:
            who = self._key.owner(pod, labels.TENANT)
            why = overdue(pod, now) if who is not None else None
            if who is None or why is None:
                continue
            try:
                removed.append(await self._end(pod, who, why, now))
            except (Unavailable, RateLimited):  # so it would be with the next one
                raise
            except OrchardError as error:
                _log.warning("the Pod of sandbox %s is not removed: %s", who.id, error)
                refused = error
            else:
                _log.info("removed the Pod of sandbox %s: %s", who.id, why)
        if refused is not None:
            raise refused
        return removed

    async def _end(self, pod: Json, who: Identity, why: str, now: datetime) -> Reaped:
        reason = None
        if has_run(pod):
            late = Death("ttl", "it outlived its longest time, which its node did not end", now)
            reason = (await self._tombstones.bury(pod, who, classify(pod) or late)).reason
        grace = UNDONE_GRACE if why == "never_started" else None
        await self._cluster.delete(self._cluster.path("pods", who.name), uid=pod["metadata"]["uid"], grace=grace)
        return Reaped(who.id, who.name, why, reason)
