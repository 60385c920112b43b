"""The API server is away, silent, overloaded, cut off: commands go on, creates wait or fail typed, nothing is lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for
from tests.kubernetes.replicas import replicas
from tests.support.waiting import until

from orchard.core.errors import Unavailable
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.conformance.faulty import NONE, Fault, Faulty
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.kubernetes.client import Cluster as Client
from orchard.sandbox.kubernetes.credentials import find_access
from orchard.sandbox.types import State

Replicas = Callable[..., KubernetesBackend]
AWAY, SILENT = Fault(refuse=True), Fault(delay=3600.0)


class Line:
    """The line between one replica and the API server; ``fault`` is what befalls connections made from now on."""

    def __init__(self, server: str, backend: KubernetesBackend) -> None:
        self.fault, self.backend = NONE, backend
        self.proxy = Faulty(server, lambda _: self.fault)

    def become(self, fault: Fault) -> None:
        """Cut every connection; new ones meet ``fault``."""
        self.fault = fault
        self.proxy.cut_all()

    async def calls(self) -> int:
        """Return how many requests the replica has sent to the API server."""
        return (await self.backend.live()).cluster.calls


@pytest.fixture
async def line(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Line]:
    told = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    access = told["clusters"][0]["cluster"]
    target = urlsplit(access["server"])
    settings = replace(settings_for(cluster, namespace), kubeconfig=tmp_path / "config")
    line = Line(f"http://{target.hostname}:{target.port or 443}", KubernetesBackend(settings))
    server = await asyncio.start_server(line.proxy.serve, "127.0.0.1", 0)
    access["server"] = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    access["tls-server-name"] = target.hostname
    (tmp_path / "config").write_text(json.dumps(told))
    yield line
    await line.backend.close()
    server.close()
    await line.proxy.stop()


async def works(box: Sandbox) -> None:
    """Many commands, files and a renewal, at once."""
    results = await asyncio.gather(*(box.run(f"echo {number}") for number in range(10)))
    assert [result.text for result in results] == [f"{number}\n" for number in range(10)]
    await box.files.write("/tmp/x", b"data")
    assert await box.files.read("/tmp/x") == b"data"
    await box.extend(500)


async def test_no_command_asks_the_api_server_and_creates_wait_for_it(
    cluster: Cluster, line: Line, replica: Replicas
) -> None:
    image, other = cluster.image("busybox"), replica()
    async with Orchard(backend=line.backend) as orchard, orchard.sandbox(image, ttl=600) as box:
        doomed = await orchard.create(image, ttl=600)
        line.become(AWAY)
        await other.delete(doomed.id)
        making = asyncio.ensure_future(orchard.create(image, ttl=600))
        await works(box)
        assert (await orchard.get(box.id)).state is State.READY
        tries = await line.calls()
        await until(lambda: tried_again(line, tries))
        assert not making.done()
        line.become(NONE)
        made = await making
        await works(made)
        await until(lambda: is_gone(orchard, doomed.id))  # nothing of the meantime was missed
        assert (await orchard.get(doomed.id)).reason == "deleted"
        await made.delete()


async def tried_again(line: Line, before: int) -> bool:
    return await line.calls() > before


async def is_gone(orchard: Orchard, sandbox_id: str) -> bool:
    return (await orchard.get(sandbox_id)).state is State.GONE


async def test_a_watch_that_is_cut_again_and_again_misses_nothing(
    cluster: Cluster, line: Line, replica: Replicas
) -> None:
    image = cluster.image("busybox")
    async with Orchard(backend=line.backend) as orchard, Orchard(backend=replica()) as other:
        await orchard.list()
        made: list[Sandbox] = []
        for _ in range(3):
            line.become(NONE)
            made.append(await other.create(image, ttl=600))
        line.become(NONE)
        await made[0].delete()
        await until(lambda: lists(orchard, made[1:]))
        assert (await line.backend.live()).cache.relists == 1  # it went on where it was cut
        await asyncio.gather(*(orchard.delete(box.id) for box in made[1:]))


async def lists(orchard: Orchard, boxes: list[Sandbox]) -> bool:
    return [info.id for info in await orchard.list()] == [box.id for box in boxes]


async def test_a_silent_api_server_stops_no_command_and_is_told_as_such(cluster: Cluster, line: Line) -> None:
    async with Orchard(backend=line.backend) as orchard, orchard.sandbox(cluster.image("busybox"), ttl=600) as box:
        line.become(SILENT)
        await works(box)
        assert [info.id for info in await orchard.list()] == [box.id]
        line.become(AWAY)
        client = Client(line.backend.settings, await find_access(line.backend.settings), window=0.5)
        with pytest.raises(Unavailable):
            await client.get(client.path("pods"))
        await client.close()
        line.become(NONE)


async def test_creates_wait_while_the_api_server_refuses(own_cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    role = f"all-{namespace}"
    subject = f"--serviceaccount={namespace}:default"
    own_cluster.kubectl("create", "clusterrolebinding", role, "--clusterrole=cluster-admin", subject)
    config = tmp_path / "config"
    own_cluster.write_kubeconfig(config, namespace)
    backend = KubernetesBackend(replace(settings_for(own_cluster, namespace), kubeconfig=config))
    try:
        async with Orchard(backend=backend) as orchard:
            box = await orchard.create(own_cluster.image("busybox"), ttl=600)
            refusing = own_cluster.refusing(namespace)
            await asyncio.to_thread(refusing.__enter__)
            making = asyncio.ensure_future(orchard.create(own_cluster.image("busybox"), ttl=600))
            try:
                await works(box)
                calls = (await backend.live()).cluster
                before = calls.calls
                await until(lambda: calls.calls > before + 1)  # it was told 429, waited as asked, and tried again
                assert not making.done()
            finally:
                await asyncio.to_thread(refusing.__exit__, None, None, None)
            await works(await making)
    finally:
        await backend.close()
        own_cluster.kubectl("delete", "clusterrolebinding", role)


async def test_commands_go_on_while_the_control_plane_is_killed_and_paused(
    cluster_to_break: Cluster, tmp_path: Path
) -> None:
    image = cluster_to_break.image("busybox")
    with replicas(cluster_to_break, tmp_path, 2) as running:
        async with running.front as front, Orchard(front.url, api_key=running.key) as orchard:
            box = await orchard.create(image, ttl=600)
            process = await box.start("for i in $(seq 200); do echo $i; sleep 0.05; done")
            making: list[asyncio.Future[Sandbox]] = []
            for fault in (cluster_to_break.stopped("apiserver", grace=0), cluster_to_break.paused("etcd")):
                await asyncio.to_thread(fault.__enter__)
                try:
                    making.append(asyncio.ensure_future(orchard.create(image, ttl=600)))
                    await works(box)
                    assert not making[-1].done()
                finally:
                    await asyncio.to_thread(fault.__exit__, None, None, None)
            lines = b"".join([chunk.data async for chunk in process]).split()
            assert lines == [b"%d" % number for number in range(1, 201)]
            for each in await asyncio.gather(*making):
                await works(each)
