"""Services over one namespace share nothing but the cluster: any answers for any sandbox, also in mid-command."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.replicas import Front, Replicas, replicas

from orchard.sandbox import Orchard


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
                killed.append(max(front.open, key=lambda port: front.open[port]))
                await asyncio.to_thread(running.kill, killed[-1])
        assert seen.decode().split() == [str(i) for i in range(1, 81)]
        assert (await once).text == "x\n"
        assert len(set(killed)) == 2
        fetched = await box.run(f"wget -qO- http://127.0.0.1:{port.port}/", timeout=60)
        assert fetched.text == "there\n", fetched
