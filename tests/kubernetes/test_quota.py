"""Quotas: the namespace's own, whose refusal is waited out, and a tenant's, over all replicas at once."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.waiting import until

from orchard.core.errors import QuotaExceeded
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend, KubernetesSettings, creating
from orchard.sandbox.kubernetes import quota as quotas
from orchard.sandbox.kubernetes.labels import TENANT
from orchard.sandbox.kubernetes.pod import Plan, manifest
from orchard.sandbox.types import SandboxSpec, State

Replicas = Callable[..., KubernetesBackend]


async def limit(cluster: Cluster, namespace: str, hard: dict[str, str]) -> None:
    """Put a ResourceQuota on the namespace; return once the API server counts by it."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": hard}}
    await asyncio.to_thread(cluster.apply, quota, namespace=namespace)

    async def counts() -> bool:
        status = (await asyncio.to_thread(cluster.get, "-n", namespace, "resourcequota", "full")).get("status", {})
        return status.get("hard") == hard and status.get("used", {}).keys() == hard.keys()

    await until(counts)


async def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    return (await asyncio.to_thread(cluster.get, "-n", namespace, "pods"))["items"]


async def test_a_create_waits_for_room_in_a_resource_quota(
    cluster: Cluster, namespace: str, replica: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its record tells when it was made, not when the wait began: else it would be taken for a copy's."""
    tried = list[datetime]()

    def note(plan: Plan, settings: KubernetesSettings) -> Any:
        tried.append(plan.created)
        return manifest(plan, settings)

    monkeypatch.setattr(creating, "manifest", note)
    await limit(cluster, namespace, {"pods": "1"})
    backend, spec = replica(creates=1), SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=120)
    first = await backend.create(spec, "first")
    tried.clear()
    calls = (await backend.live()).cluster
    before = calls.calls
    waiting = asyncio.ensure_future(backend.create(spec, "second"))
    await until(lambda: calls.calls > before + 2)
    assert not waiting.done()
    await backend.delete(first.id)
    made = await waiting
    assert (made.state, made.created_at) == (State.READY, tried[-1])
    assert tried[0] < tried[-1]


async def test_what_finds_no_room_in_a_resource_quota_is_told_as_a_quota_and_leaves_nothing(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    await limit(cluster, namespace, {"pods": "1", "requests.memory": "64Mi"})
    backend, image = replica(creates=1), cluster.image("busybox")
    made = await backend.create(SandboxSpec(image, ttl=300), "made")
    late = asyncio.ensure_future(backend.create(SandboxSpec(image, ttl=300, create_timeout=3), "late"))
    async with Orchard(backend=backend) as orchard:
        with pytest.raises(QuotaExceeded):  # a group does not wait, and the one that waits has given its turn back
            async with orchard.sandboxes(image, 2, ttl=300, create_timeout=3600):
                raise AssertionError("there is no room for two")
        with pytest.raises(QuotaExceeded, match="memory=1073741824"):  # no wait would help
            await orchard.create(image, memory="1GiB", ttl=300, create_timeout=3600)
        with pytest.raises(QuotaExceeded, match="ResourceQuota full"):
            await late
        assert [info.id for info in await orchard.list()] == [made.id]
        assert len(await pods(cluster, namespace)) == 1
        await orchard.delete(made.id)


@pytest.mark.parametrize("few", [quotas._FEW, 0])  # a list is asked for; the watch is believed, where it tells
async def test_a_tenants_quota_of_fifty_holds_over_three_replicas_and_two_hundred_creates(
    cluster: Cluster, namespace: str, replica: Replicas, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """No node takes these Pods, so they count and cost nothing.

    The slack: each further replica may have as many again on record, until it has seen the others' Pods and they are
    a second old; none of these is answered for.
    """
    monkeypatch.setattr(quotas, "_FEW", few)
    quota, asked, count = 50, 200, 3
    backends, watching = [replica(node_selector={"no": "such-node"}) for _ in range(count)], replica()
    living, most = set[str](), 0

    def note(before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        nonlocal most
        if after is None or after["metadata"].get("deletionTimestamp"):
            living.difference_update({pod["metadata"]["name"] for pod in (before, after) if pod})
        else:
            living.add(after["metadata"]["name"])
        most = max(most, len(living))

    (await watching.live()).cache.listeners.append(note)
    spec = SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=3600, labels={TENANT: "bounded"})
    making = [
        asyncio.ensure_future(backends[number % count].create_within(spec, f"k{number}", quota))
        for number in range(asked)
    ]
    try:
        await until(lambda: sum(each.done() for each in making) >= asked - quota and len(living) == quota)
        ended = [each for each in making if each.done()]
        assert {type(each.exception()) for each in ended} == {QuotaExceeded}
        assert len(ended) == asked - quota
        assert most <= count * quota
        assert len(await pods(cluster, namespace)) == quota
    finally:
        for each in making:
            each.cancel()
        await asyncio.gather(*making, return_exceptions=True)
