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
from dataclasses import dataclass
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
    """The groups as one process sees them.

    A Pod is read when it changes, and the order made anew when that changed anything: any number of creates ask it.
    """

    def __init__(self, cache: PodCache, key: ServiceKey) -> None:
        self._cache, self._key = cache, key
        self._members: dict[str, Member] = {}
        self._order: Order | None = None
        cache.listeners.append(self._see)
        for pod in cache.pods():
            self._see(None, pod)

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

    def _see(self, old: Json | None, new: Json | None) -> None:
        name = str(part(new or old or {}, "metadata").get("name"))
        before, now = self._members.pop(name, None), None if new is None else member_of(new, self._key)
        if now is not None:
            self._members[name] = now
        if now != before:
            self._order = None

    def _outranked(self, tenant: str, group: str) -> bool | None:
        if self._order is None:
            self._order = Order(self._members.values())
        return self._order.outranked((tenant, group), datetime.now(UTC))


@dataclass(frozen=True)
class Member:
    """What the order of groups is made of: a living Pod of one."""

    group: tuple[str, str]
    """Tenant and name."""
    place: tuple[str, str]
    """When it was made by the API server's clock, and its name."""
    waits: bool
    """No node can take it."""


def member_of(pod: Json, key: ServiceKey) -> Member | None:
    """Return what a Pod is in the order, or None: it is of no group, has ended, or is not proven to be ours."""
    metadata = part(pod, "metadata", "labels")
    if _LABEL not in metadata or not key.owner(pod, labels.TENANT) or deaths.classify(pod) is not None:
        return None
    place = (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
    waits = progress_of(pod).unschedulable is not None
    return Member((metadata.get(labels.TENANT, ""), metadata[_LABEL]), place, waits)


class Order:
    """Which of the groups with these members comes first."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._oldest: dict[tuple[str, str], tuple[str, str]] = {}
        waiting: set[tuple[str, str]] = set()
        for each in members:
            self._oldest[each.group] = min(self._oldest.get(each.group, _NEVER), each.place)
            if each.waits:
                waiting.add(each.group)
        places = sorted(self._oldest[group] for group in waiting)
        self._waiting = [(place, deaths.parse_time(place[0])) for place in places]

    def outranked(self, mine: tuple[str, str], now: datetime) -> bool | None:
        """Return None, or, if an older group has a Pod that no node can take, whether this one has any Pod.

        Args:
            mine: tenant and group.
            now: by the API server's clock, more or less.
        """
        own = self._oldest.get(mine, _NEVER)
        for place, begun in self._waiting:
            if place >= own:  # its own, or a younger one's
                return None
            if begun is not None and now - begun < _RANKS:
                return mine in self._oldest
        return None


def _way() -> CreateFailed:
    return CreateFailed(
        "an older group of sandboxes waits for room", reason="made_way",
        hint="end the other sandboxes of the group, then make it anew",
    )  # fmt: skip
