"""The ResourceQuota of a namespace: its refusal is waited out, and told as a quota."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.waiting import until

from orchard.core.errors import QuotaExceeded
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend
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


async def test_a_create_waits_for_room_in_a_resource_quota(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    await limit(cluster, namespace, {"pods": "1"})
    backend, spec = replica(creates=1), SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=120)
    first = await backend.create(spec, "first")
    calls = (await backend.live()).cluster
    before = calls.calls
    waiting = asyncio.ensure_future(backend.create(spec, "second"))
    await until(lambda: calls.calls > before + 3)
    assert not waiting.done()
    await backend.delete(first.id)
    assert (await waiting).state is State.READY


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
