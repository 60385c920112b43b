"""What is asked for once for all: values that are believed for a while, nodes, and policies that are kept."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.support.waiting import until

from orchard.core.errors import InvalidArgument, Unauthorized, Unavailable
from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.sandbox.kubernetes import policies as module
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.capacity import Capacity
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.fresh import Fresh
from orchard.sandbox.kubernetes.policies import Policies

POD = {"metadata": {"name": "x", "uid": "u", "resourceVersion": "1"}}


class Asked:
    """Answers once it is let go: what is next in line."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers, self.go, self.times = list(answers), asyncio.Event(), 0

    async def __call__(self) -> int:
        self.times += 1
        await self.go.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_who_waits_shares_the_outcome_of_one_attempt_a_failure_too() -> None:
    ask = Asked(Unavailable("gone"), 2, 3)
    fresh = Fresh(ask, 60.0)
    waiting = [asyncio.ensure_future(fresh.get()) for _ in range(20)]
    await until(lambda: ask.times == 1)
    ask.go.set()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(each) for each in told] == ["gone"] * 20
    assert ask.times == 1
    assert await asyncio.gather(*(fresh.get() for _ in range(20))) == [2] * 20  # whoever comes later asks again
    assert ask.times == 2


async def test_a_value_that_was_asked_for_before_is_not_the_one_of_now() -> None:
    ask = Asked(1, 2)
    ask.go.set()
    fresh = Fresh(ask, 60.0)
    assert [await fresh.get(), await fresh.get(time.monotonic()), await fresh.get()] == [1, 2, 2]


async def test_a_value_is_got_anew_after_a_while_and_an_attempt_that_is_cancelled_is_the_next_ones() -> None:
    ask = Asked(1, 2)
    fresh = Fresh(ask, 0.0)
    first, second = (asyncio.ensure_future(fresh.get()) for _ in range(2))
    await until(lambda: ask.times == 1)
    first.cancel()
    await until(lambda: ask.times == 2)
    ask.go.set()
    assert [await second, await fresh.get()] == [1, 2]


class Nodes:
    """A cluster of two nodes that counts how often it is asked for them, and what is applied."""

    namespace = "boxes"

    def __init__(self) -> None:
        self.lists, self.applied = 0, list[str]()
        self.refuses: Exception | None = None
        self.cpus, self.ranges = ["1", "2"], list[str]()

    def path(self, kind: str, name: str = "", *, group: str = "") -> str:
        return f"/{kind}/{name}"

    async def pages(self, path: str) -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        await asyncio.sleep(0)
        if self.refuses is not None:
            raise self.refuses
        for cpu in self.cpus:
            yield {"items": [{"status": {"allocatable": {"cpu": cpu}}, "spec": {"podCIDRs": self.ranges}}]}

    async def get(self, path: str) -> dict[str, Any]:
        return {"items": []}

    async def apply(self, path: str, body: dict[str, Any]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.applied.append(body["metadata"]["name"])


def wanting(cpu: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}}


async def test_the_nodes_are_listed_once_for_all_pods_that_find_no_room() -> None:
    nodes = Nodes()
    capacity = Capacity(cast("Cluster", nodes), None)
    asked = [wanting(cpu) for cpu in ("1", "2", "3")] * 20
    told = await asyncio.gather(*(capacity.never_fits(each) for each in asked))
    assert told == [False, False, True] * 20
    assert nodes.lists <= 3  # a second look for those without hope, which they share


async def test_a_node_that_has_joined_since_the_last_list_is_seen_before_a_pod_is_told_hopeless() -> None:
    nodes = Nodes()
    capacity = Capacity(cast("Cluster", nodes), None)
    assert await capacity.never_fits(wanting("3"))
    nodes.cpus.append("4")
    assert not await capacity.never_fits(wanting("3"))
    assert await capacity.never_fits(wanting("5"))


async def test_where_nodes_may_not_be_listed_nothing_is_hopeless() -> None:
    nodes = Nodes()
    nodes.refuses = Unauthorized("no")
    assert not await Capacity(cast("Cluster", nodes), None).never_fits(wanting("99"))


@pytest.mark.parametrize("outage", [None, Unavailable("gone"), KeyError("items")])
async def test_policies_are_renewed_while_a_sandbox_lives_and_only_then(
    monkeypatch: pytest.MonkeyPatch, outage: Exception | None
) -> None:
    monkeypatch.setattr(module, "_REFRESH", 0.05)
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)
    nodes = Nodes()
    cluster = cast("Cluster", nodes)
    cache, policies = PodCache(cluster), Policies(cluster, KubernetesSettings(api_servers=["192.0.2.1:6443"]))
    cache._synced.set()
    keeping = asyncio.ensure_future(policies.keep(cache))
    try:
        await asyncio.sleep(0.2)
        assert nodes.lists == 0  # nobody is there: nothing is asked
        nodes.refuses = outage
        cache.put(POD)
        await until(lambda: nodes.lists >= 2)
        nodes.refuses = None
        await until(lambda: len(nodes.applied) >= 6)
        assert set(nodes.applied) == {module.EVERY, module.OPEN}
        assert not keeping.done()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_a_range_of_a_node_may_hold_host_bits() -> None:
    nodes = Nodes()
    nodes.ranges = ["10.244.1.5/24"]
    inside = await module.find_inside(cast("Cluster", nodes), KubernetesSettings(api_servers=["192.0.2.1:6443"]))
    assert "10.244.1.0/24" in map(str, inside)


@pytest.mark.parametrize("text", ["kubernetes.default:443", "192.0.2.1", "192.0.2.1:x", ":443", "[fd00::1]"])
async def test_an_api_server_is_named_by_its_address(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await Policies(cast("Cluster", Nodes()), KubernetesSettings(api_servers=[text])).hold()
    assert caught.value.field == "api_servers"
