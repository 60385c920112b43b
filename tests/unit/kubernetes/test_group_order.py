"""Which of the groups that wait for room comes first, and for how long."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from orchard.core.errors import CreateFailed
from orchard.sandbox.kubernetes import KubernetesSettings, labels
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.groups import Groups, Order, member_of
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.pod import Plan, manifest
from orchard.sandbox.types import GROUP_LABEL, SandboxSpec

KEY = ServiceKey(b"k" * 32)
SETTINGS = KubernetesSettings(daemon_image="registry.example/sandboxd:1")
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def pod(tenant: str, group: str, *, after: int = 0, waits: bool = False, key: ServiceKey = KEY) -> dict[str, Any]:
    """A Pod as the API server shows it, made so many seconds after ``BEGAN``."""
    name, made = pod_name(tenant, f"{group} {after}"), BEGAN + timedelta(seconds=after)
    who = Identity("boxes", name, new_sandbox_id(name), tenant)
    spec = SandboxSpec("registry.example/x:1", labels={GROUP_LABEL: group, labels.TENANT: tenant})
    body = manifest(Plan(spec, who, key.mac(who), key.token_sha256(who.id), made, None), SETTINGS)
    body["metadata"] |= {"namespace": "boxes", "creationTimestamp": f"{made:%Y-%m-%dT%H:%M:%SZ}"}
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    return {**body, "status": {"phase": "Pending", "conditions": [placed] if waits else []}}


def outranked(pods: Sequence[dict[str, Any]], key: ServiceKey, mine: tuple[str, str], now: datetime) -> bool | None:
    members = [member for each in pods if (member := member_of(each, key)) is not None]
    return Order(members).outranked(mine, now)


def test_a_group_that_waits_comes_before_younger_ones_for_ten_minutes_and_no_longer() -> None:
    pods = [pod("a", "old", waits=True), pod("b", "young", after=1)]
    for seconds, young, new, old in ((30, True, False, None), (599, True, False, None), (600, None, None, None)):
        now = BEGAN + timedelta(seconds=seconds)
        assert outranked(pods, KEY, ("b", "young"), now) is young
        assert outranked(pods, KEY, ("c", "new"), now) is new
        assert outranked(pods, KEY, ("a", "old"), now) is old


def test_a_further_pod_gives_a_group_no_more_time() -> None:
    pods = [pod("a", "old"), pod("a", "old", after=500, waits=True)]
    assert outranked(pods, KEY, ("b", "new"), BEGAN + timedelta(seconds=599)) is False
    assert outranked(pods, KEY, ("b", "new"), BEGAN + timedelta(seconds=601)) is None


def test_only_proven_pods_that_wait_count() -> None:
    pods = [pod("a", "old"), pod("x", "forged", waits=True, key=ServiceKey(b"x" * 32))]
    assert outranked(pods, KEY, ("b", "new"), BEGAN + timedelta(seconds=30)) is None


class Paths:
    """Of a cluster only the paths: a cache that is fed by hand asks it nothing."""

    def path(self, kind: str) -> str:
        return f"/{kind}"


class CountingKey(ServiceKey):
    """Counts the Pods that it is asked about."""

    asked = 0

    def owner(self, pod: dict[str, Any], tenant_label: str) -> Identity | None:
        self.asked += 1
        return super().owner(pod, tenant_label)


async def test_what_waiting_creates_cost_is_not_their_number_times_that_of_the_pods() -> None:
    key, now = CountingKey(b"k" * 32), int((datetime.now(UTC) - BEGAN).total_seconds())
    cache, version = PodCache(cast("Cluster", Paths())), 0

    def put(made: dict[str, Any]) -> None:
        nonlocal version
        version += 1
        uid = f"u-{made['metadata']['name']}"
        cache.put({**made, "metadata": {**made["metadata"], "uid": uid, "resourceVersion": str(version)}})

    cache._synced.set()
    groups, oldest = Groups(cache, key), pod("a", "old", after=now - 60)
    placed, full = oldest, pod("a", "old", after=now - 60, waits=True)
    for number in range(50):
        put(pod("b", "young", after=now - 30 + number % 20))
    put(full)
    specs = [SandboxSpec("x", labels={GROUP_LABEL: f"new{number}"}) for number in range(50)]
    waiting = [asyncio.ensure_future(groups.turn(spec, "c")) for spec in specs]
    await asyncio.sleep(1.2)  # in which each has looked three times
    assert not any(each.done() for each in waiting)
    with pytest.raises(CreateFailed) as caught:
        groups.check(pod("b", "young", after=now - 30))
    assert caught.value.reason == "made_way"
    groups.check(full)
    put(placed)  # it finds room
    groups.check(pod("b", "young", after=now - 30))
    await asyncio.gather(*waiting)
    assert key.asked == 52  # once for each change of a Pod
