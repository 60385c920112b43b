"""Where the measurements on a cluster happen: a namespace of their own, a service over it, bare Pods for the floor."""

import asyncio
import contextlib
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import run
from tests.kubernetes.cluster.simulated import LABEL
from tests.kubernetes.daemon import settings_for
from tests.kubernetes.replicas import write_settings

from bench.place import Service, busybox_root_in
from orchard.core.config import env
from orchard.core.errors import MachineUnfit, Unavailable
from orchard.core.tasks import settled
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import Egress, KubernetesBackend
from orchard.sandbox.kubernetes.backend import Live
from orchard.sandbox.kubernetes.client import Cluster as Client
from orchard.sandbox.kubernetes.client import Expired
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.local.rootfs import make_layout

LOOPBACK = "127.64.0.0/10"
"""Addresses of simulated Pods: all of them this machine's own."""
IN_NAME_ONLY: dict[str, Any] = {
    "node_selector": {LABEL: "true"},
    "tolerations": [{"key": LABEL, "operator": "Exists"}],
    "egress": Egress(unfiltered_ipv6=True),  # nobody is to take it from the processes of this machine
}
"""Settings that lead Pods to simulated nodes."""
_BARE = "orchard-bench/bare"
_FRESH_BYTES = 4 << 20
_PATIENCE = 600.0
_IDLE = ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]


class ClusterPlace:
    """What a measurement on a cluster gets. All that is made here is gone at the end.

    Args:
        given: settings beside those of the tests; ``IN_NAME_ONLY`` among them.
        simulated: nodes of kwok to have, with Pods at addresses of ``LOOPBACK``.
    """

    def __init__(self, given: dict[str, Any] | None = None, *, simulated: int = 0) -> None:
        self._given, self._simulated = given or {}, simulated
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if env("KUBECONFIG") is None:
            raise MachineUnfit("no cluster is named", hint="`make cluster` brings one up; set KUBECONFIG to its")
        self.cluster = Cluster()
        if not self.cluster.ours:
            self.cluster.up()
        self.work = Path(tempfile.mkdtemp(prefix="orchard-bench-"))
        self._stack.callback(shutil.rmtree, self.work)
        blocking = self._stack.enter_context(ExitStack())
        if self._simulated:
            blocking.enter_context(self.cluster.simulated(self._simulated, prefix="bench", addresses=LOOPBACK))
        self.namespace = blocking.enter_context(self.cluster.namespace(prefix="bench"))
        self.settings = settings_for(self.cluster, self.namespace, **self._given)
        self.backend = KubernetesBackend(self.settings)
        self.direct = Orchard(backend=self.backend)
        self._stack.push_async_callback(self.direct.close)
        self._stack.push_async_callback(self.backend.close)
        await (await self.live()).policies.hold()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def live(self) -> Live:
        """Return what the backend of this process holds."""
        return await self.backend.live()

    async def serve(self) -> Service:
        """Start an ``orchard serve`` over the namespace; it ends with this place, or before."""
        folder = Path(tempfile.mkdtemp(dir=self.work))
        write_settings(folder / "kubernetes.toml", self.settings)
        env = {"ORCHARD_KUBERNETES": str(folder / "kubernetes.toml"), "ORCHARD_HOME": str(folder)}
        service = await Service.start(folder, env, "--backend", "kubernetes")
        self._stack.push_async_callback(service.end)
        return service

    def client(self, service: Service) -> Orchard:
        """Return a client of a service, closed with this place."""
        made = Orchard(service.url, api_key=service.key)
        self._stack.push_async_callback(made.close)
        return made

    @asynccontextmanager
    async def fresh_image(self) -> AsyncGenerator[str]:
        """Yield the reference of an image that no node has, 6 MB of it; it leaves the registry afterwards."""
        reference = await asyncio.to_thread(self._push_fresh)
        yield reference
        plain = f"--tls-verify={str(not self.cluster.ours).lower()}"
        await asyncio.to_thread(run, "skopeo", "delete", plain, f"docker://{reference}")

    def _push_fresh(self) -> str:
        folder = Path(tempfile.mkdtemp(dir=self.work))
        (busybox_root_in(folder / "root") / "unlike").write_bytes(secrets.token_bytes(_FRESH_BYTES))
        with tarfile.open(folder / "root.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            archive.add(folder / "root", ".")
        make_layout(folder / "root.tar", folder / "layout")
        return self.cluster.push(folder / "layout", "bench", secrets.token_hex(8))

    async def bare(self, image: str) -> "BarePods":
        """Return the floor for Pods of ``image``, one of the cluster's."""
        made = BarePods(await self.live(), self.cluster.image(image), self._given)
        following = asyncio.ensure_future(made.follow())
        self._stack.push_async_callback(settled, following)
        self._stack.callback(following.cancel)
        return made


class BarePods:
    """Pods with nothing of ours in them, made and followed by the same client."""

    def __init__(self, live: Live, image: str, given: dict[str, Any]) -> None:
        self._client: Client = live.cluster
        self._image, self._given = image, given
        self._pods: dict[str, Json] = {}
        self._changed = asyncio.Event()
        self._number = 0

    async def make(self, count: int, image: str | None = None) -> tuple[list[str], float]:
        """Make Pods, all at once; return their names and the seconds until all were Ready."""
        names, path = [f"bare-{self._number + number}" for number in range(count)], self._client.path("pods")
        self._number += count
        start = time.perf_counter()
        await asyncio.gather(*(self._client.create(path, self._pod(name, image or self._image)) for name in names))
        await self._until(lambda: all(is_ready(self._pods.get(name)) for name in names))
        return names, time.perf_counter() - start

    async def remove(self, names: list[str]) -> float:
        """Remove Pods, all at once; return the seconds until all were gone."""
        start = time.perf_counter()
        await asyncio.gather(*(self._client.delete(self._client.path("pods", name)) for name in names))
        await self._until(lambda: not any(name in self._pods for name in names))
        return time.perf_counter() - start

    async def follow(self) -> None:
        """Take in what becomes of them, until cancelled."""
        while True:
            with contextlib.suppress(Expired, Unavailable):
                await self._follow_once()

    async def _follow_once(self) -> None:
        path, selector = self._client.path("pods"), f"{_BARE}=1"
        found, version = dict[str, Json](), ""
        async for page in self._client.pages(path, labelSelector=selector):
            found |= {each["metadata"]["name"]: each for each in page["items"]}
            version = str(page["metadata"]["resourceVersion"])
        self._pods = found
        self._changed.set()
        async with self._client.watch(path, version, labelSelector=selector) as events:
            async for event in events:
                self._take(str(event["type"]), event["object"])

    def _take(self, kind: str, pod: Json) -> None:
        name = pod["metadata"].get("name")
        if kind == "DELETED":
            self._pods.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            self._pods[name] = pod
        self._changed.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def _pod(self, name: str, image: str) -> Json:
        container = {"name": "idle", "image": image, "command": _IDLE, "imagePullPolicy": "IfNotPresent",
                     "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}  # fmt: skip
        spec = {"containers": [container], "automountServiceAccountToken": False, "enableServiceLinks": False,
                "nodeSelector": self._given.get("node_selector", {}),
                "tolerations": self._given.get("tolerations", [])}  # fmt: skip
        about = {"name": name, "labels": {_BARE: "1"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def is_ready(pod: Json | None) -> bool:
    """Return whether the kubelet calls it Ready."""
    conditions = parts(pod, "status", "conditions") if pod else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def addressed(pod: Json) -> str | None:
    """Return the address of a Pod that is not about to go."""
    if pod["metadata"].get("deletionTimestamp"):
        return None
    return part(pod, "status").get("podIP")
