"""``orchard cost``: what sandboxes cost on nodes, on-demand and spot, beside services that bill a sandbox."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.errors import InvalidArgument

if TYPE_CHECKING:
    from orchard.sandbox.cost import Bill, Catalogue, Estimate, Node, PeerBill, Use

DEFAULT_NODE = "Standard_D16ads_v5"
GIB = 1 << 30
app = typer.Typer(add_completion=False)


@app.command(epilog=console.EXIT_CODES)
def cost(
    sandboxes: Annotated[int, typer.Option(help="At once.")],
    hours: Annotated[float | None, typer.Option(help="Of use, with all of them at work.")] = None,
    sandbox_hours: Annotated[float | None, typer.Option(help="In place of --hours: hours x sandboxes.")] = None,
    cpu: Annotated[float, typer.Option(help="vCPUs of a sandbox.")] = 2,
    memory: Annotated[str, typer.Option(help="Of a sandbox, such as 8GiB.")] = "8GiB",
    node: Annotated[str, typer.Option(help="Size of node, by its name in the prices.")] = DEFAULT_NODE,
    prices: Annotated[Path | None, typer.Option(help="TOML file whose entries come before the built-in ones.")] = None,
    price: Annotated[float | None, typer.Option(help="$ a node and hour, on-demand.")] = None,
    spot_price: Annotated[float | None, typer.Option(help="$ a node and hour, spot.")] = None,
    reserved_cpu: Annotated[float | None, typer.Option(help="vCPUs a node keeps: kubelet, DaemonSets.")] = None,
    reserved_memory: Annotated[str | None, typer.Option(help="Memory a node keeps, such as 2GiB.")] = None,
    max_pods: Annotated[int | None, typer.Option(help="Most Pods on a node.")] = None,
    fixed: Annotated[float | None, typer.Option(help="$ an hour whatever the size: control plane.")] = None,
    system_nodes: Annotated[int, typer.Option(help="Nodes for the service itself, on-demand.")] = 1,
    utilisation: Annotated[float, typer.Option(help="Share of paid slots that hold a sandbox, up to 1.")] = 1,
    startup: Annotated[float, typer.Option(help="Seconds until a sandbox is of use.")] = 0,
    lifetime: Annotated[float | None, typer.Option(help="Hours that one sandbox is used; all by default.")] = None,
    lost: Annotated[float, typer.Option(help="Share of spot time lost to evictions, below 1.")] = 0,
    json: Json = False,
) -> None:
    """Estimate money for sandboxes from node prices, packing and use, beside services that bill a sandbox.

    Example: orchard cost --sandboxes 128 --hours 240 --cpu 2 --memory 8GiB --spot-price 0.165
    """
    from orchard.sandbox.cost import Use, catalogue, estimate

    book = catalogue(prices)
    chosen = _node(book.node(node), {
        "on_demand": price, "spot": spot_price, "reserved_cpu": reserved_cpu, "max_pods": max_pods, "fixed": fixed,
        "reserved_memory_gib": None if reserved_memory is None else _gib(reserved_memory, "reserved-memory"),
    })  # fmt: skip
    use = Use(
        sandboxes=sandboxes, hours=_hours(sandboxes, hours, sandbox_hours), cpu=cpu, memory_gib=_gib(memory, "memory"),
        utilisation=utilisation, startup_seconds=startup, lifetime_hours=lifetime, system_nodes=system_nodes, lost=lost,
    )  # fmt: skip
    found = estimate(use, chosen, book)
    if json:
        console.out_json(_document(found, use, node, chosen, book))
    else:
        _show(found, use, node, chosen, book)


def _hours(sandboxes: int, hours: float | None, sandbox_hours: float | None) -> float:
    if (hours is None) == (sandbox_hours is None):
        raise InvalidArgument("give one of --hours and --sandbox-hours", field="hours")
    return hours if hours is not None else (sandbox_hours or 0) / max(sandboxes, 1)


def _gib(text: str, field: str) -> float:
    from orchard.sandbox.types import parse_size

    return parse_size(text, field) / GIB


def _node(known: Node, given: dict[str, Any]) -> Node:
    from orchard.sandbox.cost import Node

    own = {key: value for key, value in given.items() if value is not None}
    if own:
        own["source"] = f"{known.source}; given by option: {', '.join(own)}"
    return Node(**known.model_dump() | own)


def _rows(found: Estimate) -> list[tuple[str, Bill | PeerBill]]:
    own = [("orchard on-demand", found.on_demand), *([("orchard spot", found.spot)] if found.spot else [])]
    return [*own, *found.peers.items()]


def _show(found: Estimate, use: Use, name: str, node: Node, book: Catalogue) -> None:
    def row(title: str, bill: Bill | PeerBill) -> tuple[str, ...]:
        ratio = found.ratio(bill)
        money = f"${bill.per_hour:,.2f}", f"${bill.per_sandbox_hour:.4f}", f"${bill.total:,.0f}"
        return title, *money, "-" if ratio is None else f"{ratio:.2f}x"

    columns = ["", "$/h", "$/sandbox-hour", "total", "to the cheapest service"]
    console.out_table(columns, [row(title, bill) for title, bill in _rows(found)])
    if found.spot is None:
        console.out(f"spot: no price of {name} is known; give --spot-price")
    for line in _assumptions(found, use, name, node, book):
        console.out(line)


def _assumptions(found: Estimate, use: Use, name: str, node: Node, book: Catalogue) -> list[str]:
    lifetime = use.lifetime_hours or use.hours
    return [
        f"use: {use.sandboxes} sandboxes of {use.cpu:g} vCPU, {use.memory_gib:g} GiB for {use.hours:g} h"
        f" = {use.sandbox_hours:,.0f} sandbox-hours",
        f"nodes: {found.nodes} of {name} ({node.vcpus:g} vCPU and {node.memory_gib:g} GiB, of which"
        f" {node.reserved_cpu:g} and {node.reserved_memory_gib:g} reserved), {found.slots} sandboxes each,"
        f" full by {found.limit}; {use.system_nodes} more, on-demand, for the service",
        f"node and hour: ${node.on_demand:g} on-demand, {'-' if node.spot is None else f'${node.spot:g}'} spot;"
        f" ${node.fixed:g} an hour fixed",
        f"paid: {found.on_demand.paid_hours:,.1f} h: start-up {use.startup_seconds:g} s for each {lifetime:g} h,"
        f" utilisation {use.utilisation:.0%}, spot time lost {use.lost:.0%}",
        "not in it: disks, registry, network, people; plans and minimum fees of the services",
        f"prices of {book.date}, US dollars; {name}: {node.source}",
        *(f"{peer}: {book.peers[peer].source}" for peer in found.peers),
    ]


def _document(found: Estimate, use: Use, name: str, node: Node, book: Catalogue) -> dict[str, Any]:
    bills = {title: asdict(bill) | {"ratio": found.ratio(bill)} for title, bill in _rows(found)}
    return {
        "nodes": found.nodes,
        "sandboxes_per_node": found.slots,
        "limit": found.limit,
        "sandbox_hours": use.sandbox_hours,
        "on_demand": bills.pop("orchard on-demand"),
        "spot": bills.pop("orchard spot", None),
        "peers": bills,
        "assumptions": {
            "use": use.model_dump(),
            "node": {"name": name} | node.model_dump(),
            "prices_of": book.date.isoformat(),
            "peers": {peer: book.peers[peer].model_dump() for peer in found.peers},
        },
    }
