"""Services over one namespace share nothing but the cluster: any answers for any sandbox, also in mid-command."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.replicas import Front, Replicas, replicas
from tests.support.waiting import until

from orchard.core.errors import CreateFailed, QuotaExceeded, SandboxGone
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.types import SandboxSpec, State


@pytest.fixture(scope="module")
def running(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with replicas(cluster, tmp_path_factory.mktemp("replicas"), 3) as running:
        yield running


@pytest.fixture
async def front(running: Replicas) -> AsyncIterator[Front]:
    """One address that leads to any replica; all of them run."""
    await asyncio.to_thread(running.start)
    async with running.front as front:
        yield front


@pytest.fixture
async def orchard(running: Replicas, front: Front) -> AsyncIterator[Orchard]:
    async with Orchard(front.url, api_key=running.key) as door:
        yield door


@pytest.fixture
def image(cluster: Cluster) -> str:
    return cluster.image("busybox")


async def test_commands_and_tunnels_go_on_when_any_replica_dies(
    running: Replicas, front: Front, orchard: Orchard, image: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nthere\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    count = "for i in $(seq 80); do echo $i; sleep 0.1; done"
    async with server, orchard.sandbox(image, ttl=600) as box, box.reverse(0, target) as port:
        process = await box.start(count)
        once = asyncio.ensure_future(box.run("echo x >> /once; sleep 8; cat /once"))
        seen = bytearray()
        killed: list[int] = []
        async for chunk in process:
            seen += chunk.data
            if len(killed) < 2 and len(seen) > 30 * (len(killed) + 1):
                # the replica with most connections: streams, carriers
                killed.append(max(front.open.keys() - set(killed), key=lambda port: front.open[port]))
                await asyncio.to_thread(running.kill, killed[-1])
        assert seen.decode().split() == [str(i) for i in range(1, 81)]
        assert (await once).text == "x\n"
        assert len(set(killed)) == 2
        fetched = await box.run(f"wget -qO- http://127.0.0.1:{port.port}/", timeout=60)
        assert fetched.text == "there\n", fetched


async def test_any_replica_answers_for_what_another_made(running: Replicas, front: Front, image: str) -> None:
    one, other, third = (running.door(number) for number in range(3))
    async with one, other, third:
        box = await one.create(image, ttl=600)
        same = await other.attach(box.id)
        assert (await same.run("echo $((6 * 7))")).text == "42\n"
        await same.extend(900)

        async def agree() -> bool:
            return len({(await door.get(box.id)).expires_at for door in (one, other, third)}) == 1

        await until(agree)
        await until(lambda: is_listed(third, box.id))
        await third.delete(box.id)
        for door in (one, other, third):
            assert (await door.get(box.id)).reason == "deleted"
        for stale in (box, same):  # each replica still remembers the address
            with pytest.raises(SandboxGone):
                await stale.run("true")


async def is_listed(door: Orchard, sandbox_id: str) -> bool:
    return sandbox_id in [info.id for info in await door.list()]


async def test_renewing_at_one_replica_is_renewing(running: Replicas, front: Front, image: str) -> None:
    window = 12.0
    async with running.door(0) as one, running.door(1) as other:
        made = await one.create_from(SandboxSpec(image, ttl=600, heartbeat=window))
        same = await other.attach(made.id)
        for _ in range(5):
            await asyncio.sleep(window / 4)
            await same.renew()
        assert (await made.run("echo alive")).text == "alive\n"
        for door in (one, other):  # each learns of it by a watch of its own
            await until(lambda door=door: is_gone(door, made.id))
        assert {(await door.get(made.id)).reason for door in (one, other)} == {"heartbeat"}
        await made.delete()


async def is_gone(door: Orchard, sandbox_id: str) -> bool:
    return (await door.get(sandbox_id)).state is State.GONE


async def test_one_key_at_all_replicas_is_one_sandbox(running: Replicas, front: Front, image: str) -> None:
    doors = [running.door(number) for number in range(3)]
    made = await asyncio.gather(*(door.create(image, ttl=600, key="twice", labels={"t": "k"}) for door in doors))
    assert len({box.id for box in made}) == 1
    assert [info.id for info in await doors[0].list({"t": "k"})] == [made[0].id]
    await doors[1].delete(made[0].id)


async def test_a_create_whose_replica_dies_is_joined_at_another(
    running: Replicas, front: Front, orchard: Orchard, image: str
) -> None:
    before = {pod["metadata"]["name"] for pod in running.pods()}
    making = asyncio.ensure_future(orchard.create(image, ttl=600, key="joined"))

    async def begun() -> bool:
        return bool({pod["metadata"]["name"] for pod in await asyncio.to_thread(running.pods)} - before)

    await until(begun, most=0.1)  # before it is ready
    (port,) = (port for port, count in front.open.items() if count)
    await asyncio.to_thread(running.kill, port)
    box = await making
    assert len({pod["metadata"]["name"] for pod in running.pods()} - before) == 1
    assert (await box.run("echo made")).text == "made\n"
    assert (await orchard.create(image, ttl=600, key="joined")).id == box.id
    await box.delete()


async def test_a_create_whose_replica_is_asked_to_stop_goes_on_at_another(
    cluster: Cluster, namespace: str, replica: Callable[..., KubernetesBackend], image: str
) -> None:
    label = f"orchard.test/{namespace}"
    first, second = (replica(node_selector={label: "1"}) for _ in range(2))
    spec = SandboxSpec(image, ttl=600)
    stopped = asyncio.ensure_future(first.create(spec, "one"))
    await until(lambda: has_pod(cluster, namespace))
    (before,) = cluster.get("-n", namespace, "pods")["items"]
    joined = asyncio.ensure_future(second.create(spec, "one"))
    first.leave()
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    cluster.kubectl("label", "node", cluster.nodes[0], f"{label}=1")  # now a node takes it
    try:
        assert (await joined).state is State.READY
        (after,) = cluster.get("-n", namespace, "pods")["items"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
    finally:
        cluster.kubectl("label", "node", cluster.nodes[0], f"{label}-")


async def has_pod(cluster: Cluster, namespace: str) -> bool:
    return bool((await asyncio.to_thread(cluster.get, "-n", namespace, "pods"))["items"])


async def test_a_create_is_given_up_at_another_replica(running: Replicas, front: Front, image: str) -> None:
    def give_up(key: str) -> Awaitable[aiohttp.ClientResponse]:
        return http.delete(f"{running.services[1].url}/v1/creates/{key}")

    async with running.door(0) as one, aiohttp.ClientSession(headers=running.services[1].auth) as http:
        made = await one.create(image, ttl=600, key="after")
        assert (await give_up("after")).status == 204
        assert (await one.get(made.id)).reason == "deleted"
        assert (await give_up("before")).status == 204  # the other replica is about to make it
        try:
            late = await one.create(image, ttl=600, key="before")
        except CreateFailed as error:
            assert "deleted while it was made" in error.message  # noqa: PT017 - one of two good ends
        else:
            await until(lambda: is_gone(one, late.id))
        await until(lambda: no_pods(running))


async def no_pods(running: Replicas) -> bool:
    return not await asyncio.to_thread(running.pods)


async def test_a_quota_holds_over_replicas(running: Replicas, front: Front, image: str) -> None:
    quota, asked = 2, 9
    key = running.new_key("bounded", quota=quota)
    doors = [running.door(number, key) for number in range(3)]
    await asyncio.sleep(1.1)  # a service follows the file of keys within a second
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            living = [pod for pod in await asyncio.to_thread(running.pods) if is_ready(pod)]
            most = max(most, len(living))
            await asyncio.sleep(0.2)

    watching = asyncio.ensure_future(watch())
    creates = [doors[number % 3].create(image, ttl=600) for number in range(asked)]
    ends = await asyncio.gather(*creates, return_exceptions=True)
    watching.cancel()
    made = [end for end in ends if isinstance(end, Sandbox)]
    assert len(made) == quota, ends
    assert {type(end) for end in ends if end not in made} == {QuotaExceeded}
    assert most <= 3 * quota
    await until(lambda: is_left(running, quota))
    await doors[0].delete(made.pop().id)
    made.append(await doors[1].create(image, ttl=600))  # there is room again
    await asyncio.gather(*(doors[2].delete(box.id) for box in made))


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


async def is_left(running: Replicas, count: int) -> bool:
    return len(await asyncio.to_thread(running.pods)) == count


async def test_a_client_in_the_cluster_goes_direct(
    running: Replicas, front: Front, orchard: Orchard, image: str
) -> None:
    near = Orchard(front.url, api_key=running.key, direct=True)
    async with near, near.sandbox(image, ttl=600) as box:
        endpoint = box.transport.endpoint
        (pod,) = (pod for pod in running.pods() if box.id.startswith(pod["metadata"]["name"]))
        assert endpoint.base == f"http://{pod['status']['podIP']}:8421"
        stale = replace(endpoint, headers={**endpoint.headers, "Authorization": "Bearer lapsed"})
        box.transport._set(stale)  # as after ten minutes
        assert (await box.run("echo again")).text == "again\n"
        assert box.transport.endpoint.headers != endpoint.headers
        async with aiohttp.ClientSession() as http:  # a token that was handed out hands out none
            url = f"{endpoint.base}/v1/tokens"
            async with http.post(url, headers=endpoint.headers, json={"replace": "0" * 64}) as answer:
                assert answer.status == 401
        assert (await (await orchard.attach(box.id)).run("echo through")).text == "through\n"


@pytest.mark.usefixtures("a_hundred_pods")
@pytest.mark.timeout(900, func_only=True)
async def test_fifty_users_at_once(running: Replicas, front: Front, image: str) -> None:
    async def use(number: int) -> str:
        door = Orchard(front.url, api_key=running.key, labels={"user": str(number)})
        async with door, door.sandbox(image, ttl=600) as box:
            await box.files.write("/who", f"user {number}".encode())
            result = await box.run("cat /who")
            assert [info.id for info in await door.list({"user": str(number)})] == [box.id]
            return result.text

    told = await asyncio.gather(*(use(number) for number in range(50)))
    assert told == [f"user {number}" for number in range(50)]
    assert all(each.process.poll() is None for each in running.services)
    await until(lambda: no_pods(running))
