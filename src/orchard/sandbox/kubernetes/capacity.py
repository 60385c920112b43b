"""Whether a Pod could ever be placed: on a node as it is when empty, or on the largest that may be added."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

from orchard.core.errors import Unauthorized
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.fresh import Fresh
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.settings import NodeSize

_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(m|[KMGTPE]i?|k)?")
_PASSING = "node.kubernetes.io/"
"""Begins the taints that tell of a node's state now: not ready, cordoned, under pressure."""
_COUNTED = ("cpu", "memory", "ephemeral-storage")
_FRESH_SECONDS = 10.0  # that the nodes are believed
_UNITS = {"m": Decimal("0.001"), "k": Decimal(1000)} | {
    f"{letter}{i}": Decimal(base**power)
    for power, letter in enumerate("KMGTPE", 1)
    for i, base in (("", 1000), ("i", 1024))
}


def quantity(text: str) -> Decimal:
    """Return the number that a quantity of Kubernetes stands for: ``"100m"``, ``"2Gi"``."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    return Decimal(match[1]) * _UNITS.get(match[2] or "", Decimal(1))


def exceeds(pod: Json, nodes: list[Json], largest: NodeSize | None) -> bool:
    """Return True if no node, not even an empty or the largest new one, has the CPUs, the memory and the disk.

    What disk a new node has is not known, so it counts as enough.
    """
    wanted = part(parts(pod, "spec", "containers")[0], "resources", "requests")
    asked = {name: quantity(str(wanted[name])) for name in _COUNTED if name in wanted}
    selector, tolerations = part(pod, "spec", "nodeSelector"), parts(pod, "spec", "tolerations")
    sizes = [] if largest is None else [{"cpu": Decimal(largest.cpu), "memory": Decimal(largest.memory)}]
    may = (part(each, "status", "allocatable") for each in nodes if accepts(each, selector, tolerations))
    found = False
    for has in chain(sizes, map(_size, may)):  # as far as the first that will do: mostly the first
        if all(size <= has.get(name, size) for name, size in asked.items()):
            return False
        found = True
    return found


def _size(allocatable: Json) -> dict[str, Decimal]:
    return {name: quantity(str(allocatable[name])) for name in _COUNTED if name in allocatable}


def accepts(node: Json, selector: Mapping[str, str], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the node has the labels of ``selector`` and no taint but tolerated ones; it may be cordoned."""
    taints = [each for each in parts(node, "spec", "taints") if each["effect"] != "PreferNoSchedule"]
    own = part(node, "metadata", "labels")
    return all(own.get(name) == value for name, value in selector.items()) and all(
        taint["key"].startswith(_PASSING) or any(_tolerates(each, taint) for each in tolerations) for taint in taints
    )


def _tolerates(toleration: Mapping[str, Any], taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")


class Capacity:
    """What the nodes hold, as one process knows it: asked for once in a while, however many Pods find no room.

    Args:
        cluster: whose nodes.
        largest: the largest node that may be added.
    """

    def __init__(self, cluster: Cluster, largest: NodeSize | None) -> None:
        self._cluster, self._largest = cluster, largest
        self._nodes = Fresh(self._list, _FRESH_SECONDS)

    async def never_fits(self, pod: Json) -> bool:
        """Return True if the Pod can never be placed; False also where nodes may not be listed.

        That it can is believed of an older list; that it cannot only of one begun since: a node may just have joined.
        """
        asked = time.monotonic()
        for since in (0.0, asked):
            nodes = await self._nodes.get(since)
            if nodes is None or not exceeds(pod, nodes, self._largest):
                return False
        return True

    async def _list(self) -> list[Json] | None:
        nodes: list[Json] = []
        try:
            async for page in self._cluster.pages("/api/v1/nodes"):
                nodes += map(_needed, page["items"])
        except Unauthorized:
            return None
        return nodes


def _needed(node: Json) -> Json:
    """Return what ``exceeds`` looks at: the whole of a node is much larger."""
    return {
        "metadata": {"labels": part(node, "metadata", "labels")},
        "spec": {"taints": parts(node, "spec", "taints")},
        "status": {"allocatable": part(node, "status", "allocatable")},
    }
