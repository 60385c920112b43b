"""The network of sandboxes, tried for real from inside and from beside."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import PATIENCE, wait_until
from tests.kubernetes.daemon import gone, our_address, settings_for
from tests.kubernetes.test_cluster import pod, ready
from tests.support.waiting import until

from orchard.core.errors import CreateFailed
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.conformance.suite import eventually
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.kubernetes.identity import name_of
from orchard.sandbox.kubernetes.pod import PORT
from orchard.sandbox.kubernetes.policies import EVERY, OPEN
from orchard.sandbox.types import Network

_PROBE = """
import json, socket, struct, sys, threading
QUERY = b"\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0" + b"".join(
    bytes([len(part)]) + part for part in b"kubernetes.default.svc.cluster.local".split(b".")) + b"\\0\\0\\x01\\0\\x01"
def tcp(host, port):
    with socket.create_connection((host, port), 2): pass
def udp(host, port):
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(2); s.sendto(QUERY, (host, port)); s.recv(512)
def icmp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
        s.settimeout(2); s.sendto(b"\\x08\\0\\xf7\\xfd\\0\\1\\0\\1", (host, 0)); s.recv(512)
def link(host, port):
    mac = [line.split()[3] for line in open("/proc/net/arp") if line.split()[0][0].isdigit()][0].split(":")
    mac[0] = "%02x" % (int(mac[0], 16) ^ 2)
    node = "fe80::%s%s:%sff:fe%s:%s%s" % tuple(mac)
    with socket.socket(socket.AF_INET6) as s:
        s.settimeout(2); s.connect((node, port, 0, socket.if_nametoindex("eth0")))
found = {}
def attempt(name, kind, host, port):
    try: {"tcp": tcp, "udp": udp, "icmp": icmp, "link": link}[kind](host, port); found[name] = True
    except OSError as error: found[name] = False
threads = [threading.Thread(target=attempt, args=each) for each in json.loads(sys.argv[1])]
[each.start() for each in threads]; [each.join() for each in threads]
print(json.dumps(found))
"""
_LISTEN = "import socket; s = socket.create_server(('', 9000)); print(1, flush=True)\nwhile True: s.accept()"
Targets = list[tuple[str, str, str, int]]


class Place(NamedTuple):
    """Sandboxes in a namespace, and everything around them that may or may not be reached."""

    cluster: Cluster
    namespace: str
    orchard: Orchard

    @property
    def image(self) -> str:
        return self.cluster.image("debian")

    def inside(self) -> Targets:
        """What of the cluster and around it no sandbox may reach, though any Pod can."""
        service = self.cluster.get("service", "kubernetes")["spec"]
        slices = self.cluster.get("endpointslices", "-l", "kubernetes.io/service-name=kubernetes")["items"]
        dns = self.cluster.get("-n", "kube-system", "pods", "-l", "k8s-app=kube-dns")["items"][0]["status"]["podIP"]
        return [
            ("API server", "tcp", slices[0]["endpoints"][0]["addresses"][0], slices[0]["ports"][0]["port"]),
            ("API server's Service", "tcp", service["clusterIP"], 443),
            ("this machine", "tcp", our_address(self.cluster), int(self.cluster.registry.rpartition(":")[2])),
            ("metadata", "tcp", self.cluster.metadata, 80),
            ("kubelet of its node by a link-local address", "link", "", 10250),
            ("another port of the DNS Pod", "tcp", dns, 8080),
            *((f"kubelet of {name}", "tcp", address, 10250) for name, address in self._nodes()),
            *((f"ping of {name}", "icmp", address, 0) for name, address in self._nodes()),
        ]

    def names(self) -> Targets:
        dns = self.cluster.get("-n", "kube-system", "pods", "-l", "k8s-app=kube-dns")["items"][0]["status"]["podIP"]
        service = self.cluster.get("-n", "kube-system", "service", "kube-dns")["spec"]["clusterIP"]
        return [("DNS Pod", "udp", dns, 53), ("DNS Pod by TCP", "tcp", dns, 53), ("DNS Service", "udp", service, 53)]

    def world(self) -> Targets:
        return [("world", "tcp", self.cluster.internet, 80)]

    def _nodes(self) -> list[tuple[str, str]]:
        return [
            (node["metadata"]["name"], address["address"])
            for node in self.cluster.get("nodes")["items"]
            for address in node["status"]["addresses"]
            if address["type"] == "InternalIP" and node["metadata"]["name"] in self.cluster.nodes
        ]

    def address(self, box: Sandbox) -> str:
        return self.cluster.get("-n", self.namespace, "pod", name_of(box.id))["status"]["podIP"]

    def plain(self, name: str, **labels: str) -> str:
        """A Pod that is no sandbox, from which any target can be tried; returns its address."""
        image = [{"name": "main", "image": self.image, "command": ["sleep", "3600"]}]
        body = pod(name, self.image, containers=image)
        body["metadata"]["labels"] |= labels
        return ready(self.cluster, self.namespace, body)[name]

    def reached_by(self, name: str, targets: Targets) -> dict[str, bool]:
        words = ("-n", self.namespace, "exec", name, "--", "python3", "-c", _PROBE, json.dumps(targets))
        return json.loads(self.cluster.kubectl(*words))


async def reached(box: Sandbox, targets: Targets) -> dict[str, bool]:
    result = await box.run(["python3", "-c", _PROBE, json.dumps(targets)], user="0", timeout=60)
    return json.loads(result.check().text)


@pytest.fixture
async def place(cluster: Cluster, namespace: str) -> AsyncIterator[Place]:
    backend = KubernetesBackend(settings_for(cluster, namespace))
    async with Orchard(backend=backend) as orchard:
        yield Place(cluster, namespace, orchard)
    await backend.close()


def all_of(targets: Targets, verdict: bool) -> dict[str, bool]:
    return {name: verdict for name, *_ in targets}


async def test_without_network_nothing_is_reached_that_any_other_pod_reaches(place: Place) -> None:
    targets = place.inside() + place.names() + place.world()
    place.plain("plain")
    await told_from(place, "plain", targets, all_of(targets, True))
    async with place.orchard.sandbox(place.image) as box:
        assert await reached(box, targets) == all_of(targets, False)
        ask = "import socket, time; t = time.monotonic()\ntry: socket.getaddrinfo('example.com', 80); print('found')\n"
        ask += "except OSError: print(time.monotonic() - t)"
        assert float((await box.run(["python3", "-c", ask])).check().text) < 4  # to be ignored takes 5 or more


async def test_an_open_network_is_the_world_and_names_but_nothing_inside(place: Place) -> None:
    inside, allowed = place.inside(), place.names() + place.world()
    async with place.orchard.sandbox(place.image, network="open") as box:
        await until_told(box, allowed, True)
        await until_told(box, inside, False)
        ask = "import socket; print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))"
        assert (await box.run(["python3", "-c", ask])).check().text.strip() == inside[1][2]


async def told_from(place: Place, name: str, targets: Targets, found: dict[str, bool]) -> None:
    """Wait, in a thread, until a plain Pod finds so: leases of sandboxes are renewed meanwhile."""
    await asyncio.to_thread(wait_until, lambda: place.reached_by(name, targets) == found, f"{name} to find {found}")


async def until_told(box: Sandbox, targets: Targets, verdict: bool) -> None:
    """Only ``none`` holds from the first moment; else a policy takes a while to bite, one that allows too."""

    async def told() -> bool:
        return await reached(box, targets) == all_of(targets, verdict)

    await eventually(told, PATIENCE, f"not all of {[name for name, *_ in targets]} became {verdict}")


@asynccontextmanager
async def listening(place: Place, network: Network) -> AsyncIterator[tuple[Sandbox, str]]:
    """A sandbox with a server on port 9000, and its address."""
    async with place.orchard.sandbox(place.image, network=network) as box:
        process = await box.start(["python3", "-c", _LISTEN])
        async for _ in process:
            break
        yield box, place.address(box)


@pytest.mark.parametrize("network", ["none", "open"])
async def test_sandboxes_do_not_reach_each_other(place: Place, network: Network) -> None:
    async with listening(place, network) as (_, address), place.orchard.sandbox(place.image, network=network) as box:
        own: Targets = [("itself", "tcp", place.address(box), PORT)]
        other: Targets = [("sandboxd", "tcp", address, PORT), ("server", "tcp", address, 9000)]
        if network == "open":
            await until_told(box, other, False)
        assert await reached(box, own + other) == all_of(own, True) | all_of(other, False)


async def test_only_clients_get_in_and_only_to_the_daemon(place: Place) -> None:
    place.plain("stranger")
    place.plain("client", **{"orchard/client": "1"})
    async with listening(place, "open") as (_, address):
        daemon: Targets = [("sandboxd", "tcp", address, PORT)]
        server: Targets = [("server", "tcp", address, 9000)]
        shut = all_of(daemon + server, False)
        await told_from(place, "stranger", daemon + server, shut)
        only = all_of(daemon, True) | all_of(server, False)
        await told_from(place, "client", daemon + server, only)


@asynccontextmanager
async def ours(place: Place) -> AsyncIterator[tuple[str, int, list[str]]]:
    """A listener on this machine; yields address, port and who has come."""
    seen: list[str] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])
        writer.close()

    address = our_address(place.cluster)
    server = await asyncio.start_server(note, address, 0)
    async with server:
        yield address, server.sockets[0].getsockname()[1], seen


@pytest.mark.usefixtures("a_hundred_pods")
@pytest.mark.timeout(900, func_only=True)
async def test_no_command_ever_runs_before_the_network_is_shut(place: Place) -> None:
    """Thirty sandboxes at once, each of which tries at once: as its entrypoint, and by the first command."""
    image = place.cluster.image("busybox")

    def leave(*targets: tuple[str, int]) -> str:
        tries = (f"{{ nc -w 2 {host} {port} </dev/null && echo OUT $0 {host}; }} &" for host, port in targets)
        return f"{' '.join(tries)} wait"

    async with ours(place) as (address, port, seen):
        api, world = place.inside()[0][2:], place.world()[0][2:]
        async with place.orchard.sandbox(image, network="open") as box:
            out = ["sh", "-c", leave(world), "command"]

            async def gets_out() -> bool:
                return (await box.run(out)).text == f"OUT command {world[0]}\n"

            await eventually(gets_out, PATIENCE, "the attempt itself does not work")
        script = leave(api, (address, port))

        async def one() -> str:
            async with place.orchard.sandbox(image, entrypoint=["sh", "-c", script, "entrypoint"]) as box:
                first = await box.run(["sh", "-c", script, "command"], timeout=60)
                entry = await (await box.attach("entrypoint")).result()
                return first.check().text + entry.text

        told = await asyncio.gather(*(one() for _ in range(12)))
        assert len(told) == 12
        assert "".join(told) == ""
        assert seen == []


async def test_where_no_policy_bites_a_sandbox_without_network_is_not_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.orchard.sandbox(place.cluster.image("busybox")):
        pass
    monkeypatch.setattr("orchard.sandbox.kubernetes.pod._SEAL_SECONDS", 4.0)
    place.cluster.kubectl("-n", place.namespace, "delete", "networkpolicy", EVERY, OPEN)
    with pytest.raises(CreateFailed) as caught:
        await place.orchard.create(place.cluster.image("busybox"))
    assert caught.value.reason == "not_sealed"
    await gone(place.cluster, place.namespace)


@pytest.mark.parametrize("network", ["none", "open"])
async def test_a_reverse_tunnel_leads_out_of_any_network(place: Place, network: Network) -> None:
    async with ours(place) as (address, port, seen), place.orchard.sandbox(place.image, network=network) as box:
        target: Targets = [("tunnel", "tcp", "127.0.0.1", 8126), ("this machine", "tcp", address, port)]
        if network == "open":
            await until_told(box, target[1:], False)
            seen.clear()
        async with box.reverse(8126, f"tcp:{address}:{port}"):
            assert await reached(box, target) == {"tunnel": True, "this machine": False}
            await until(lambda: bool(seen))  # what is inside was taken at once; the target is dialled after that
        assert seen == [address]


async def test_policies_are_two_whatever_the_number_of_sandboxes_and_the_same_from_any_replica(place: Place) -> None:
    def policies() -> list[dict[str, Any]]:
        items = place.cluster.get("-n", place.namespace, "networkpolicies")["items"]
        return [{"name": each["metadata"]["name"], **each["spec"]} for each in items]

    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(place.orchard.sandbox(place.cluster.image("busybox"), network="open"))
        first = policies()
        assert sorted(each["name"] for each in first) == [OPEN, EVERY]
        backend = KubernetesBackend(settings_for(place.cluster, place.namespace))
        async with Orchard(backend=backend) as replica, replica.sandbox(place.cluster.image("busybox")):
            assert policies() == first
        await backend.close()
