"""Our Pods as the API server tells of them: listed once, then followed by a watch that resumes where it broke.

One cache serves one event loop. Any number of replicas have one each and share nothing. An object of the watch
replaces what is here unless what is here is newer, so that the answer to a write of ours may be put in at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from typing import TypeAlias, cast

from orchard.core.errors import NotFound, OrchardError, RateLimited
from orchard.core.retry import Patience
from orchard.sandbox.kubernetes import labels
from orchard.sandbox.kubernetes.client import Cluster, Expired
from orchard.sandbox.kubernetes.objects import Json, part

Listener: TypeAlias = Callable[[Json | None, Json | None], None]
"""Called with a Pod before and after a change; None: not there."""

_log = logging.getLogger(__name__)
_FOREVER = 10.0**9
_DROPPED = 2000  # ids of Pods that are gone, remembered
SELECTOR = f"{labels.SANDBOX}=1"


class Following:
    """One Pod as it is known now; ``wake`` is set by each change."""

    def __init__(self, pods: dict[str, Json], name: str) -> None:
        self._pods, self._name = pods, name
        self.wake = asyncio.Event()

    @property
    def pod(self) -> Json | None:
        """The Pod, or None: it is not there."""
        return self._pods.get(self._name)

    async def changed(self) -> None:
        """Return after the next change, or at once if there was one since the last call."""
        await self.wake.wait()
        self.wake.clear()


class PodCache:
    """The Pods with our label, proven or not: whoever shows or touches one asks for the proof."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._path = cluster.path("pods")
        self._pods: dict[str, Json] = {}
        self._version = ""
        self._synced, self._moved = asyncio.Event(), asyncio.Event()
        self._waiting: dict[str, set[Following]] = {}
        self._dropped: OrderedDict[str, None] = OrderedDict()
        self._heard = time.monotonic()
        self._cut = asyncio.Event()
        self.listeners: list[Listener] = []
        self.relists = 0
        """Lists made so far."""

    async def run(self) -> None:
        """Follow the Pods until cancelled. What fails is tried again for ever; what is known stays."""
        patience = Patience(_FOREVER, first=0.1, most=5.0)
        while True:
            try:
                if not self._version:
                    await self._list()
                    self._synced.set()
                await self._watch()
                patience.reset()
            except Expired:
                self._version = ""
            except OrchardError as error:
                _log.log(logging.WARNING if not self._synced.is_set() else logging.INFO, "pods: %s", error)
                await patience.pause(error, error.retry_after if isinstance(error, RateLimited) else 0.0)

    async def synced(self) -> None:
        """Return once the first list is here."""
        await self._synced.wait()

    async def reached(self, version: str) -> None:
        """Return once all is known here that was on record at ``version``; only the next news tells that it is."""
        while not (self._version == version or _newer_version(self._version, version)):
            await self._moved.wait()

    def restart(self) -> None:
        """Cut the watch and take it up anew: it seems to be silent though the server is not."""
        self._cut.set()

    def pods(self) -> Iterator[Json]:
        """Return all Pods that are known now."""
        return iter(list(self._pods.values()))

    def known(self, name: str) -> Json | None:
        """Return the Pod as known here, without asking."""
        return self._pods.get(name)

    async def get(self, name: str) -> Json | None:
        """Return the Pod, asking the API server where it is not known here; None: there is none."""
        known = self._pods.get(name)
        if known is not None:
            return known
        try:
            pod = await self._cluster.get(f"{self._path}/{name}")
        except NotFound:
            return None
        if part(pod, "metadata", "labels").get(labels.SANDBOX) == "1":
            self.put(pod)
        return pod

    def put(self, pod: Json) -> None:
        """Take in a Pod that the API server has just answered with."""
        name = str(pod["metadata"]["name"])
        old = self._pods.get(name)
        if pod["metadata"]["uid"] in self._dropped or (old is not None and _newer(old, pod)):
            return
        pod["metadata"].pop("managedFields", None)
        self._pods[name] = pod
        self._tell(name, old, pod)

    def drop(self, name: str, uid: str) -> None:
        """Take note that the API server has no such Pod any more."""
        self._dropped[uid] = None  # an answer that was on its way does not bring it back
        if len(self._dropped) > _DROPPED:
            self._dropped.popitem(last=False)
        old = self._pods.get(name)
        if old is not None and old["metadata"]["uid"] == uid:
            del self._pods[name]
            self._tell(name, old, None)

    @contextlib.contextmanager
    def following(self, name: str) -> Generator[Following]:
        """Yield a view of the Pod ``name`` that tells when it changes."""
        view = Following(self._pods, name)
        self._waiting.setdefault(name, set()).add(view)
        try:
            yield view
        finally:
            waiting = self._waiting[name]
            waiting.discard(view)
            if not waiting:
                del self._waiting[name]

    def silent(self) -> float:
        """Return the seconds since the API server last told anything."""
        return time.monotonic() - self._heard

    def nudge(self, name: str) -> None:
        """Wake whoever follows the Pod ``name``: something is known of it that is not in its status."""
        for view in self._waiting.get(name, ()):
            view.wake.set()

    def _tell(self, name: str, old: Json | None, new: Json | None) -> None:
        self.nudge(name)
        for listener in self.listeners:
            listener(old, new)

    async def _list(self) -> None:
        self.relists += 1
        seen: dict[str, str] = {}
        version = ""
        async for page in self._cluster.pages(self._path, labelSelector=SELECTOR):
            version = str(page["metadata"]["resourceVersion"])
            for pod in cast("list[Json]", page["items"]):
                seen[pod["metadata"]["name"]] = pod["metadata"]["uid"]
                self.put(pod)
        for name, pod in list(self._pods.items()):
            if seen.get(name) != pod["metadata"]["uid"] and not _newer_than(pod, version):
                self.drop(name, pod["metadata"]["uid"])
        self._move(version)

    async def _watch(self) -> None:
        self._cut.clear()
        self._heard = time.monotonic()
        watching = asyncio.ensure_future(self._follow())
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait([watching, cut], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            for task in (watching, cut):
                task.cancel()
            await asyncio.wait([watching, cut])
            if not watching.cancelled():
                watching.exception()  # seen: raised above, or outranked by our own cancellation

    async def _follow(self) -> None:
        async with self._cluster.watch(self._path, self._version, labelSelector=SELECTOR) as events:
            async for event in events:
                self._take(str(event["type"]), event["object"])

    def _take(self, kind: str, pod: Json) -> None:
        self._heard = time.monotonic()
        if kind == "DELETED":
            pod["metadata"].setdefault("deletionTimestamp", datetime.now(UTC).isoformat())  # forced: without grace
            self.put(pod)  # its last words
            self.drop(pod["metadata"]["name"], pod["metadata"]["uid"])
        elif kind in ("ADDED", "MODIFIED"):
            self.put(pod)
        with contextlib.suppress(KeyError):
            self._move(str(pod["metadata"]["resourceVersion"]))

    def _move(self, version: str) -> None:
        self._version = version
        self._moved.set()
        self._moved = asyncio.Event()


def _newer(old: Json, new: Json) -> bool:
    """Versions of one resource grow with time; Kubernetes promises that they compare as numbers (since 1.35)."""
    return _newer_than(old, str(new["metadata"]["resourceVersion"]))


def _newer_than(pod: Json, version: str) -> bool:
    return _newer_version(str(pod["metadata"]["resourceVersion"]), version)


def _newer_version(own: str, version: str) -> bool:
    return own.isdigit() and version.isdigit() and int(own) > int(version)
