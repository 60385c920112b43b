"""The estimate: arithmetic alone, money in US dollars.

    slots  = min(floor((vcpus - reserved) / cpu), floor((GiB - reserved) / memory), max_pods - system_pods)
    nodes  = ceil(sandboxes / slots)
    paid   = hours x (1 + startup / lifetime) / utilisation, and for spot / (1 - lost)
    $/h    = nodes x price + system_nodes x on-demand price + fixed
    total  = paid x $/h
    a peer = sandboxes x hours x (cpu x vCPU price + memory x GiB price)

System nodes carry the service and the cluster's own Pods: they are on-demand in both columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from orchard.core.errors import InvalidArgument
from orchard.sandbox.cost.prices import Amount, Catalogue, Checked, Node, Positive

_SLACK = 1e-9
"""Keeps 0.3 / 0.1 at three: a quotient this close below a whole number is the whole number."""


class Use(Checked):
    """What is asked of the cluster. ``cpu`` and ``memory_gib`` are requests of one sandbox."""

    sandboxes: Annotated[int, Field(ge=1, le=10**9)]
    """At once."""
    hours: Positive
    """Of use: ``sandboxes * hours`` sandbox-hours."""
    cpu: Positive = 2
    memory_gib: Positive = 8
    utilisation: Annotated[float, Field(ge=0.001, le=1)] = 1
    """Share of the paid slots that hold a sandbox, over time: scaling down lags, the last batch is not full."""
    startup_seconds: Amount = 0
    """A slot is taken, and not of use, so long for each sandbox."""
    lifetime_hours: Positive | None = None
    """Of one sandbox; None: as long as ``hours``."""
    system_nodes: Annotated[int, Field(ge=0, le=10**6)] = 1
    lost: Annotated[float, Field(ge=0, le=0.999)] = 0
    """Share of spot time whose work is lost to evictions and done again."""

    @property
    def sandbox_hours(self) -> float:
        """Sandbox-hours of use."""
        return self.sandboxes * self.hours


@dataclass(frozen=True)
class Bill:
    """What the nodes cost."""

    paid_hours: float
    per_hour: float
    total: float
    per_sandbox_hour: float


@dataclass(frozen=True)
class PeerBill:
    """What one service bills."""

    per_hour: float
    total: float
    per_sandbox_hour: float


@dataclass(frozen=True)
class Estimate:
    """The result. ``spot`` is None where the node has no spot price; ``limit`` says what fills a node first."""

    slots: int
    limit: str
    nodes: int
    on_demand: Bill
    spot: Bill | None
    peers: dict[str, PeerBill]

    def ratio(self, bill: Bill | PeerBill) -> float | None:
        """Return ``bill`` over the cheapest peer's, or None without one."""
        cheapest = min((peer.total for peer in self.peers.values()), default=0.0)
        return bill.total / cheapest if cheapest else None


def estimate(use: Use, node: Node, prices: Catalogue) -> Estimate:
    """Return what ``use`` costs on ``node``, and at each peer of ``prices``.

    Raises:
        InvalidArgument: not one sandbox fits on a node.
    """
    slots, limit = _slots(use, node)
    nodes = -(-use.sandboxes // slots)
    paid = use.hours * (1 + use.startup_seconds / 3600 / (use.lifetime_hours or use.hours)) / use.utilisation

    def bill(price: float, hours: float) -> Bill:
        per_hour = nodes * price + use.system_nodes * node.on_demand + node.fixed
        return Bill(hours, per_hour, hours * per_hour, hours * per_hour / use.sandbox_hours)

    def billed(rate: float) -> PeerBill:
        return PeerBill(use.sandboxes * rate, use.sandbox_hours * rate, rate)

    return Estimate(
        slots,
        limit,
        nodes,
        bill(node.on_demand, paid),
        None if node.spot is None else bill(node.spot, paid / (1 - use.lost)),
        {
            name: billed(use.cpu * peer.vcpu_hour + use.memory_gib * peer.gib_hour)
            for name, peer in prices.peers.items()
        },
    )


def _slots(use: Use, node: Node) -> tuple[int, str]:
    """Return how many sandboxes a node holds, and what fills it first."""
    room = {
        "cpu": math.floor((node.vcpus - node.reserved_cpu) / use.cpu + _SLACK),
        "memory": math.floor((node.memory_gib - node.reserved_memory_gib) / use.memory_gib + _SLACK),
        "pods": node.max_pods - node.system_pods,
    }
    limit = min(room, key=room.__getitem__)
    if room[limit] < 1:
        raise InvalidArgument(
            f"a sandbox of {use.cpu:g} vCPU and {use.memory_gib:g} GiB does not fit on a node of {node.vcpus:g} vCPU"
            f" and {node.memory_gib:g} GiB with its reserve, for want of {limit}: ask for less, or take a larger node",
            field="memory_gib" if limit == "memory" else limit,
        )
    return room[limit], limit
