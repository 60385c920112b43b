"""Groups of sandboxes, all or none, where a cluster has no room for two at once."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import gone

from orchard.core.errors import CreateFailed, InvalidArgument
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.types import GROUP_LABEL, SandboxSpec, State

Replicas = Callable[..., KubernetesBackend]
SEATS = 3


@pytest.fixture
def seat(cluster: Cluster) -> Iterator[dict[str, str]]:
    """What one sandbox takes of a resource of which the cluster has ``SEATS``."""
    name, node = f"orchard.test/seat-{secrets.token_hex(4)}", cluster.nodes[0]
    path = f"/status/capacity/{name.replace('/', '~1')}"

    def patch(change: dict[str, str]) -> None:
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps([change]))

    patch({"op": "add", "path": path, "value": str(SEATS)})
    yield {"cpu": "10m", "memory": "16Mi", name: "1"}
    patch({"op": "remove", "path": path})


def limits(seat: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in seat.items() if name.startswith("orchard.test/")}


async def test_a_younger_group_makes_way_with_all_it_holds(
    cluster: Cluster, seat: dict[str, str], replica: Replicas
) -> None:
    first, second = (replica(requests=seat, limits=limits(seat)) for _ in range(2))

    def member(group: str) -> SandboxSpec:
        return SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=240, labels={GROUP_LABEL: group})

    await first.create(member("old"), "old-0")
    await asyncio.sleep(1.1)  # the API server's clock ticks in seconds
    held = [await second.create(member("young"), f"young-{number}") for number in range(2)]
    waits = asyncio.ensure_future(first.create(member("old"), "old-1"))

    with pytest.raises(CreateFailed) as caught:
        await second.create(member("young"), "young-2")
    assert caught.value.reason == "made_way"
    newest = asyncio.ensure_future(second.create(member("newest"), "newest-0"))  # has nothing, so it waits
    await asyncio.gather(*(second.delete(info.id) for info in held))
    assert (await waits).state is State.READY
    assert (await newest).state is State.READY


async def test_two_groups_that_do_not_fit_together_come_one_after_the_other(
    cluster: Cluster, namespace: str, seat: dict[str, str], replica: Replicas
) -> None:
    doors = [Orchard(backend=replica(requests=seat, limits=limits(seat))) for _ in range(2)]
    inside: list[int] = []

    async def work(door: Orchard) -> list[Sandbox]:
        async with door.sandboxes(cluster.image("busybox"), 2, ttl=300, create_timeout=240) as boxes:
            inside.append(len(boxes))
            results = await asyncio.gather(*(box.run("echo here") for box in boxes))
            assert [result.text for result in results] == ["here\n"] * 2
            return boxes

    one, other = await asyncio.gather(*(work(door) for door in doors))
    assert inside == [2, 2]
    assert len({box.id for box in one + other}) == 4
    await gone(cluster, namespace)


async def test_a_group_with_one_that_fails_is_none(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    orchard = Orchard(backend=replica())
    with pytest.raises(InvalidArgument):
        orchard.sandboxes(cluster.image("busybox"), 0)
    with pytest.raises(CreateFailed) as caught:
        async with orchard.sandboxes(cluster.image("absent"), 2, ttl=300):
            raise AssertionError("there is no such image")
    assert caught.value.reason == "image_not_found"
    assert cluster.get("-n", namespace, "pods")["items"] == []
