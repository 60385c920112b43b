"""The estimate of money: packing, the published comparison, and what is refused."""

import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.sandbox.cost import Catalogue, Estimate, Node, Peer, Use, catalogue, estimate

PUBLISHED = Path(__file__).parents[3] / "examples/prices/published.toml"
NODE = Node(vcpus=16, memory_gib=64, on_demand=1, source="test")
NO_PEERS = Catalogue(date=date(2026, 1, 1))


def on(node: dict[str, Any], **use: Any) -> Estimate:
    return estimate(Use(**{"sandboxes": 128, "hours": 10} | use), Node(**NODE.model_dump() | node), NO_PEERS)


@pytest.mark.parametrize(
    ("who", "total", "ratio"),
    [
        ("on-demand", 3362, 0.47),
        ("spot", 673, 0.10),
        ("daytona", 7078, 1.0),
        ("e2b", 7078, 1.0),
        ("modal", 10305, 1.46),
    ],
)
def test_the_published_comparison_comes_out_to_the_dollar(who: str, total: int, ratio: float) -> None:
    prices = catalogue(PUBLISHED)
    found = estimate(Use(sandboxes=128, hours=240, cpu=2, memory_gib=8), prices.node("published"), prices)
    bill = {"on-demand": found.on_demand, "spot": found.spot, **found.peers}[who]
    assert bill is not None
    assert round(bill.total) == total
    assert round(found.ratio(bill) or 0, 2) == ratio
    assert (found.nodes, found.slots) == (16, 8)


def test_with_what_a_kubelet_keeps_the_published_node_holds_seven_and_costs_three_more_nodes() -> None:
    prices = catalogue(PUBLISHED)
    reserve: dict[str, Any] = {"reserved_cpu": 0.26, "reserved_memory_gib": 2.3}
    node = Node(**prices.node("published").model_dump() | reserve)
    found = estimate(Use(sandboxes=128, hours=240), node, prices)
    assert (found.nodes, found.slots, found.limit) == (19, 7, "cpu")
    assert round(found.on_demand.total) == 3955
    assert round(found.ratio(found.on_demand) or 0, 2) == 0.56


@pytest.mark.parametrize(
    ("node", "use", "slots", "limit"),
    [
        ({}, {"cpu": 2, "memory_gib": 4}, 8, "cpu"),
        ({}, {"cpu": 1, "memory_gib": 10}, 6, "memory"),
        ({"max_pods": 30, "system_pods": 10}, {"cpu": 0.1, "memory_gib": 0.1}, 20, "pods"),
        ({"vcpus": 0.3}, {"cpu": 0.1}, 3, "cpu"),
        ({"reserved_cpu": 0.001}, {"cpu": 2}, 7, "cpu"),
        ({"reserved_memory_gib": 0.001}, {"cpu": 2, "memory_gib": 8}, 7, "memory"),
    ],
)
def test_what_fills_a_node_first(node: dict[str, Any], use: dict[str, Any], slots: int, limit: str) -> None:
    found = on(node, **use)
    assert (found.slots, found.limit) == (slots, limit)
    assert found.nodes == math.ceil(128 / slots)


def test_a_node_is_paid_whole() -> None:
    assert on({}, sandboxes=8).nodes == 1
    assert on({}, sandboxes=9).nodes == 2


def test_start_up_and_utilisation_are_paid_time_without_use() -> None:
    plain = on({}).on_demand
    assert (plain.paid_hours, plain.per_hour, plain.total) == (10, 17, 170)
    assert plain.per_sandbox_hour == pytest.approx(170 / 1280)
    assert on({}, utilisation=0.5).on_demand.total == pytest.approx(340)
    assert on({}, startup_seconds=360, lifetime_hours=1).on_demand.paid_hours == pytest.approx(11)
    assert on({}, startup_seconds=3600).on_demand.paid_hours == pytest.approx(11)


def test_spot_pays_for_lost_work_and_leaves_the_service_on_demand() -> None:
    found = on({"spot": 0.25, "fixed": 0.5}, lost=0.2, system_nodes=2)
    assert found.on_demand.total == pytest.approx(10 * (16 + 2 + 0.5))
    assert found.spot is not None
    assert found.spot.paid_hours == pytest.approx(12.5)
    assert found.spot.total == pytest.approx(12.5 * (16 * 0.25 + 2 + 0.5))
    assert on({}).spot is None


def test_peers_bill_use_alone_and_the_cheapest_is_one() -> None:
    peers = {"dear": Peer(vcpu_hour=1, gib_hour=1, source=""), "cheap": Peer(vcpu_hour=0.5, gib_hour=0, source="")}
    use = Use(sandboxes=4, hours=2, cpu=2, memory_gib=3, utilisation=0.1, startup_seconds=900)
    found = estimate(use, NODE, Catalogue(date=date(2026, 1, 1), peers=peers))
    assert (found.peers["dear"].total, found.peers["cheap"].total) == (40, 8)
    assert (found.ratio(found.peers["dear"]), found.ratio(found.peers["cheap"])) == (5, 1)
    assert on({}).ratio(on({}).on_demand) is None


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"sandboxes": 0}, "sandboxes"), ({"sandboxes": 1.5}, "sandboxes"), ({"hours": 0}, "hours"),
        ({"hours": math.inf}, "hours"), ({"hours": math.nan}, "hours"), ({"cpu": -1}, "cpu"), ({"cpu": 1e-300}, "cpu"),
        ({"memory_gib": 0}, "memory_gib"), ({"utilisation": 0}, "utilisation"), ({"utilisation": 1.1}, "utilisation"),
        ({"startup_seconds": -1}, "startup_seconds"), ({"lost": 1}, "lost"), ({"system_nodes": -1}, "system_nodes"),
        ({"lifetime_hours": 0}, "lifetime_hours"), ({"cores": 2}, "cores"), ({"cpu": 17}, "cpu"),
        ({"memory_gib": 65}, "memory_gib"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused_by_name(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        on({}, **wrong)
    assert caught.value.field == field


def test_every_built_in_price_has_a_source_and_holds_a_default_sandbox() -> None:
    prices = catalogue()
    assert {"e2b", "daytona", "modal"} <= set(prices.peers)
    for priced in (*prices.nodes.values(), *prices.peers.values()):
        assert len(priced.source) > 20
    for name in prices.nodes:
        assert estimate(Use(sandboxes=1, hours=1), prices.node(name), prices).slots >= 1


def test_a_file_comes_before_the_built_in_prices(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'date = 2027-02-03\n[nodes.mine]\nvcpus = 4\nmemory_gib = 8\non_demand = 0.1\nsource = "us"\n'
        '[peers.e2b]\nvcpu_hour = 9\ngib_hour = 0\nsource = "us"\n'
    )
    prices = catalogue(file)
    assert prices.date.isoformat() == "2027-02-03"
    assert prices.node("mine").on_demand == 0.1
    assert prices.peers["e2b"].vcpu_hour == 9
    assert prices.peers["modal"] == catalogue().peers["modal"]
    with pytest.raises(InvalidArgument, match=r"known: .*mine"):
        prices.node("other")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("date =", "prices"),
        ("date = 2027-01-01\n[nodes.a]\nvcpus = 4\nmemory_gib = 8\nsource = ''", "nodes.a.on_demand"),
        ("date = 2027-01-01\n[nodes.a]\nvcpus = 0\nmemory_gib = 8\non_demand = 1\nsource = ''", "nodes.a.vcpus"),
        ("date = 2027-01-01\n[peers.a]\nvcpu_hour = 1\ngib_hour = 1\nper_month = 1\nsource = ''", "peers.a.per_month"),
        ("[peers]", "date"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_key(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=r"wrong\.toml") as caught:
        catalogue(file)
    assert caught.value.field == field


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        catalogue(tmp_path / "none.toml")
