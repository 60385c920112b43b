"""Groups of sandboxes that are made all or none: no two may wait for each other, each holding a part of the room.

The order of groups is that of their oldest Pods by the API server's clock. While a group has a Pod that no node can
take, every younger one makes way: its Pods that find no room fail with ``made_way``, whereupon its caller ends all of
it and comes again; and no group begins. So the oldest gets what the others hold, and the order has no circle.

Ten minutes after its oldest Pod was made a group waits as any other create does: anybody may ask for what never finds
room, and tenants who have nothing to do with it must not wait for that any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from orchard.core.errors import CreateFailed
from orchard.sandbox.kubernetes import deaths, labels
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.identity import ServiceKey
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.record import progress_of
from orchard.sandbox.types import GROUP_LABEL, SandboxSpec

_LOOK_EVERY = 0.5  # seconds
_LABEL = next(iter(labels.to_pod({GROUP_LABEL: ""})))
_RANKS = timedelta(minutes=10)  # that a group comes before the younger ones
_NEVER = ("~", "")  # after every time


class Groups:
    """The groups as one process sees them."""

    def __init__(self, cache: PodCache, key: ServiceKey) -> None:
        self._cache, self._key = cache, key

    async def turn(self, spec: SandboxSpec, tenant: str) -> None:
        """Return once no older group than the spec's, if it is of one, waits for room.

        Raises:
            CreateFailed: ``made_way``, if the group holds a part of the room; ``unschedulable`` if not, and the other
                one waits for all of the time that this create may take.
        """
        group = spec.labels.get(GROUP_LABEL)
        if group is None:
            return
        await self._cache.synced()
        try:
            async with asyncio.timeout(spec.create_timeout):
                while (begun := self._outranked(tenant, group)) is not None:
                    if begun:
                        raise _way()
                    await asyncio.sleep(_LOOK_EVERY)
        except TimeoutError as error:
            raise CreateFailed("an older group of sandboxes waits for room", reason="unschedulable") from error

    def check(self, pod: Json) -> None:
        """Return if the Pod, for which there is no room now, may wait for it.

        Raises:
            CreateFailed: ``made_way``.
        """
        metadata = part(pod, "metadata", "labels")
        if _LABEL in metadata and self._outranked(metadata.get(labels.TENANT, ""), metadata[_LABEL]) is not None:
            raise _way()

    def _outranked(self, tenant: str, group: str) -> bool | None:
        return outranked(self._cache.pods(), self._key, (tenant, group), datetime.now(UTC))


def outranked(pods: Iterable[Json], key: ServiceKey, mine: tuple[str, str], now: datetime) -> bool | None:
    """Return None, or, if an older group has a Pod that no node can take, whether this one has any Pod.

    Args:
        pods: all that are known.
        key: proves which of them are ours.
        mine: tenant and group.
        now: by the API server's clock, more or less.
    """
    oldest: dict[tuple[str, str], tuple[str, str]] = {}
    waiting: set[tuple[str, str]] = set()
    for pod in pods:
        metadata = part(pod, "metadata", "labels")
        if _LABEL not in metadata or deaths.classify(pod) is not None or not key.owner(pod, labels.TENANT):
            continue
        name = (metadata.get(labels.TENANT, ""), metadata[_LABEL])
        place = (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
        oldest[name] = min(oldest.get(name, _NEVER), place)
        if progress_of(pod).unschedulable:
            waiting.add(name)
    before = [oldest[name] for name in waiting - {mine} if oldest[name] < oldest.get(mine, _NEVER)]
    begun = [deaths.parse_time(time) for time, _ in before]
    return mine in oldest if any(at is not None and now - at < _RANKS for at in begun) else None


def _way() -> CreateFailed:
    return CreateFailed(
        "an older group of sandboxes waits for room", reason="made_way",
        hint="end the other sandboxes of the group, then make it anew",
    )  # fmt: skip
