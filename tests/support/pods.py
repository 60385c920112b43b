"""Pods of a tenant, and an API server that keeps them and tells a watch of them: a few methods, no cluster."""

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

from orchard.core.errors import Conflict, NotFound
from orchard.core.tasks import cancel
from orchard.sandbox.kubernetes import KubernetesSettings, client, labels
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.pod import Plan, manifest
from orchard.sandbox.types import SandboxSpec

KEY = ServiceKey(b"k" * 32)
SETTINGS = KubernetesSettings(daemon_image="registry.example/sandboxd:1")
TENANT = "bounded"
SPEC = SandboxSpec("registry.example/x:1", labels={labels.TENANT: TENANT}, create_timeout=20)


def identity(key: str) -> Identity:
    name = pod_name(TENANT, key)
    return Identity("boxes", name, new_sandbox_id(name), TENANT)


def body(key: str, second: int | None = None) -> dict[str, Any]:
    """What is sent to make the tenant's Pod under the idempotency key; made in that second of a minute long ago."""
    who = identity(key)
    made = manifest(Plan(SPEC, who, KEY.mac(who), KEY.token_sha256(who.id), datetime.now(UTC), None), SETTINGS)
    if second is not None:
        made["metadata"]["creationTimestamp"] = f"2026-01-02T03:04:{second:02}Z"
    return made


class Server:
    """Keeps Pods, which run at once.

    Args:
        lasts: seconds until a Pod that is deleted is gone.
    """

    namespace = "boxes"

    def __init__(self, lasts: float = 0.0) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.lasts, self.version, self.lists, self.made = lasts, 1, 0, 0
        self.graces: list[int] = []
        """Of what was deleted."""
        self.telling = True
        """Whether the watch is told."""
        self._events = asyncio.Queue[dict[str, Any]]()

    @property
    def as_cluster(self) -> client.Cluster:
        return cast("client.Cluster", self)

    @asynccontextmanager
    async def cache(self) -> AsyncGenerator[PodCache]:
        """A cache of its Pods for the length of the block; ``lists`` begins anew."""
        cache = PodCache(self.as_cluster)
        following = asyncio.ensure_future(cache.run())
        await cache.synced()
        self.lists = 0
        try:
            yield cache
        finally:
            await cancel(following)

    def path(self, kind: str, name: str = "") -> str:
        return f"/{kind}/{name}" if name else f"/{kind}"

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        if path == "/pods":
            return {"metadata": {"resourceVersion": str(self.version)}, "items": []}
        if path.removeprefix("/pods/") not in self.pods:
            raise NotFound(path)
        return copy.deepcopy(self.pods[path.removeprefix("/pods/")])

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = body["metadata"]["name"]
        if name in self.pods:
            raise Conflict(name, reason="AlreadyExists")
        self.made += 1
        facts = {"creationTimestamp": _now(), **body["metadata"], "namespace": "boxes", "uid": f"made-{self.made}"}
        state = {"name": "sandbox", "state": {"running": {}}}
        status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [state]}
        self.pods[name] = {**copy.deepcopy(body), "metadata": facts, "status": status}
        self._change("ADDED", name, {})
        await asyncio.sleep(0.01)  # the watch may be first
        return copy.deepcopy(self.pods[name])

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> None:
        name = path.removeprefix("/pods/")
        asked: dict[str, Any] = {
            "deletionTimestamp": _now(), "deletionGracePeriodSeconds": 5 if grace is None else grace,
        }  # fmt: skip
        self.graces.append(asked["deletionGracePeriodSeconds"])
        self._change("MODIFIED", name, asked)
        asyncio.get_running_loop().call_later(self.lasts, self._remove, name)

    def _remove(self, name: str) -> None:
        self._change("DELETED", name, {})
        del self.pods[name]

    def _change(self, kind: str, name: str, facts: dict[str, Any]) -> None:
        self.version += 1
        self.pods[name]["metadata"] |= facts | {"resourceVersion": str(self.version)}
        if self.telling:
            self.tell(kind, name)

    def tell(self, kind: str, name: str) -> None:
        """Tell the watch of a Pod as it is now."""
        self._events.put_nowait({"type": kind, "object": copy.deepcopy(self.pods[name])})

    async def pages(self, path: str, **params: str) -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        yield {"metadata": {"resourceVersion": str(self.version)}, "items": copy.deepcopy(list(self.pods.values()))}

    @asynccontextmanager
    async def watch(self, path: str, version: str, **params: str) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        async def events() -> AsyncIterator[dict[str, Any]]:
            while True:
                yield await self._events.get()

        yield events()


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
