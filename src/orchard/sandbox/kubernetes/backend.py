"""``KubernetesBackend``: the backend protocol over a cluster, which is the only store.

What a process holds (connections, the cache of Pods) it holds for each event loop, made on first use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from orchard.core.errors import InvalidArgument, NotFound, SandboxGone, Unavailable
from orchard.core.ids import check_id, check_key
from orchard.core.tasks import cancel
from orchard.sandbox.kubernetes import deaths, labels
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.commit import Committer
from orchard.sandbox.kubernetes.complaints import Complaints
from orchard.sandbox.kubernetes.creating import Maker
from orchard.sandbox.kubernetes.daemons import Daemons
from orchard.sandbox.kubernetes.identity import ID, Identity, ServiceKey, name_of
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.labels import to_pod
from orchard.sandbox.kubernetes.objects import Json
from orchard.sandbox.kubernetes.pod import notes
from orchard.sandbox.kubernetes.policies import Policies
from orchard.sandbox.kubernetes.reap import Reaped, Reaper
from orchard.sandbox.kubernetes.record import created_at, info_of, progress_of
from orchard.sandbox.kubernetes.registry import Registry
from orchard.sandbox.kubernetes.seal import Witness
from orchard.sandbox.kubernetes.secret import service_key
from orchard.sandbox.kubernetes.settings import KubernetesSettings, load_settings
from orchard.sandbox.kubernetes.tombstones import Tombstones
from orchard.sandbox.kubernetes.toolvolumes import NO_REPOSITORY
from orchard.sandbox.protocol import Capabilities
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec, State, check_labels

_DELETE_SECONDS = 120.0
_LEASES_AT_ONCE = 64
_LATER = "it comes later to the kubernetes backend"
_EXCEPTIONS = {
    "pids": "Kubernetes has no such limit for a Pod; the kubelet's podPidsLimit holds",
    "cpu-count": "a CPU limit of a Pod is a share of time: programs see the CPUs of the node",
    "disk": "a Pod beyond its ephemeral storage is evicted; it is not told that the disk is full",
    "oom-of-children": "a Pod counts its OOM kills as a whole: which command lost a child is not known",
    "oom-score": "the kubelet sets it, by the class of the Pod; commands go before the daemon",
    "pause": _LATER, "snapshot": _LATER, "fork": _LATER, "pool": _LATER,
}  # fmt: skip


@dataclass(frozen=True)
class Live:
    """What one event loop holds; its ``keeper`` follows the Pods and, when it ends, closes the rest."""

    cluster: Cluster
    cache: PodCache
    key: ServiceKey
    daemons: Daemons
    images: Images
    policies: Policies
    maker: Maker
    tombstones: Tombstones
    reaper: Reaper
    committer: Committer
    ready: set[str]
    """Ids whose daemon has answered this process: true before the kubelet says so."""
    keeper: asyncio.Task[None]


class KubernetesBackend:
    """Sandboxes as Pods. Any number of processes may use one namespace; each sees the sandboxes of all.

    Args:
        settings: None: what the file named by ``ORCHARD_KUBERNETES`` says, else the defaults.
    """

    name = "kubernetes"

    def __init__(self, settings: KubernetesSettings | None = None) -> None:
        self.settings = settings or load_settings()
        self._lives: dict[asyncio.AbstractEventLoop, asyncio.Task[Live]] = {}
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"KubernetesBackend(namespace={self.settings.namespace!r})"

    async def capabilities(self) -> Capabilities:
        """Return what this backend cannot do, by name with the reason."""
        missing = {} if self.settings.commit_repository else {"commit": "commit_repository is not set"}
        missing |= {} if self.settings.tools_repository else {"tools": NO_REPOSITORY}
        return Capabilities({**_EXCEPTIONS, **missing})

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        """Make a sandbox and return once a command works in it; the same ``key`` returns the same one, by any replica.

        Raises:
            CreateFailed: with the reason; nothing is left of it.
            Conflict: another spec under the same key, or a Pod that is not ours in its place.
            Unsupported: the spec asks for what a Pod cannot have.
        """
        return await self._create(spec, key, None)

    async def create_within(self, spec: SandboxSpec, key: str, most: int) -> SandboxInfo:
        """As ``create``, if the tenant of the spec has fewer than ``most`` alive, over all replicas; see ``quota``.

        Raises:
            QuotaExceeded: it has as many already; nothing is left of this one.
        """
        return await self._create(spec, key, most)

    async def _create(self, spec: SandboxSpec, key: str, most: int | None) -> SandboxInfo:
        spec.validated()
        check_key(key, "idempotency key")
        live = await self.live()
        await live.policies.hold()
        pod, who = await live.maker.create(spec, key, most)
        await live.tombstones.check(pod, who)
        info = self._info(live, pod, who)
        if info.state is State.GONE:
            return info
        live.ready.add(who.id)
        return await self._with_lease(live, pod, replace(info, state=State.READY))

    def leave(self) -> None:
        """Let creates that are cancelled from now on leave their Pods: whoever asks again elsewhere joins them."""
        for opening in self._lives.values():
            if opening.done() and not _broken(opening):
                opening.result().maker.leaving = True

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return what is known, also after the end.

        Raises:
            NotFound: no such sandbox.
        """
        live = await self.live()
        found = await self._find(live, sandbox_id)
        if isinstance(found, SandboxInfo):
            return found
        return await self._with_lease(live, found[0], self._info(live, *found))

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return living sandboxes whose labels include ``labels``, oldest first."""
        if isinstance(limit, bool) or not 1 <= limit <= 1000:
            raise InvalidArgument(f"limit must be 1 to 1000, not {limit!r}", field="limit")
        live, wanted = await self.live(), to_pod(check_labels(labels or {})).items()
        await live.cache.synced()
        named = [pod for pod in live.cache.pods() if wanted <= pod["metadata"]["labels"].items()]  # first: it is cheap
        found = [each for each in map(lambda pod: self._ours(live, pod), named) if each is not None]
        living = sorted((_place(*each), each) for each in found if deaths.classify(each[0]) is None)
        chosen = [(place, each) for place, each in living if cursor is None or place > cursor]
        page, turns = chosen[:limit], asyncio.Semaphore(_LEASES_AT_ONCE)

        async def complete(pod: Json, who: Identity) -> SandboxInfo:
            async with turns:
                return await self._with_lease(live, pod, self._info(live, pod, who))

        items = await asyncio.gather(*(complete(*each) for _, each in page))
        alive = [info for info in items if info.state is not State.GONE]
        return Page(alive, page[-1][0] if len(chosen) > limit else None)

    async def living(self) -> int:
        """Return how many live by what their Pods say; none of them is asked."""
        live = await self.live()
        await live.cache.synced()
        return sum(self._ours(live, pod) is not None and deaths.classify(pod) is None for pod in live.cache.pods())

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        """End it; with ``wait``, return once the kubelet has removed all of it. Deleting what has ended is fine.

        Raises:
            NotFound: no such sandbox, ever.
            Unavailable: its node has not removed it for two minutes.
        """
        live = await self.live()
        found = await self._find(live, sandbox_id)
        if isinstance(found, SandboxInfo):
            return
        pod, who = found
        death = deaths.classify(pod) or deaths.Death("deleted", "as asked for", datetime.now(UTC))
        await live.tombstones.bury(pod, who, death)
        with live.cache.following(who.name) as view:
            await live.cluster.delete(live.cluster.path("pods", who.name), uid=pod["metadata"]["uid"])
            if not wait:
                return
            try:
                async with asyncio.timeout(_DELETE_SECONDS):
                    while view.pod is not None and view.pod["metadata"]["uid"] == pod["metadata"]["uid"]:
                        await view.changed()
            except TimeoutError as error:
                raise Unavailable(
                    f"the node of sandbox {sandbox_id} has not removed it in {_DELETE_SECONDS:g} s", reason="node",
                    hint="is its node alive? the Pod goes once the node is back or removed",
                ) from error  # fmt: skip

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Return how to reach it: straight at the Pod's address.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended; with the reason.
            Unavailable: it is still being made.
        """
        live = await self.live()
        found = await self._find(live, sandbox_id)
        info = found if isinstance(found, SandboxInfo) else self._info(live, *found)
        if isinstance(found, SandboxInfo) or info.state is State.GONE:
            detail = f": {info.detail}" if info.detail else ""
            at = info.ended_at.isoformat() if info.ended_at else None
            raise SandboxGone(f"sandbox {sandbox_id} has ended{detail}", reason=info.reason, at=at)
        address = progress_of(found[0]).address
        if info.state is not State.READY:
            info = await self._with_lease(live, found[0], info)
        if info.state is not State.READY or address is None:
            raise Unavailable(f"sandbox {sandbox_id} is still {info.state}", hint="wait until it is ready")
        return live.daemons.endpoint(sandbox_id, address)

    async def commit(self, sandbox_id: str, name: str) -> str:
        """End the sandbox and push its changes as an image to the repository of the settings; return its digest.

        The digest alone is an ``image`` here; ``name`` becomes a part of its tag, for people.

        Raises:
            As ``Committer.commit``.
        """
        return await (await self.live()).committer.commit(check_id(sandbox_id, "sandbox id"), name)

    async def resolve_image(self, image: str) -> str | None:
        """Return the image's digest, or None where there is no skopeo to ask its registry.

        Raises:
            CreateFailed: image_not_found, image_auth, image_invalid, wrong_arch, registry_unreachable.
        """
        facts = await (await self.live()).images.facts(image)
        return facts.digest if facts else None

    async def reap(self) -> Sequence[Reaped]:
        """Remove Pods of ours whose time is over, once; every process that is connected does so by itself, too.

        One that is not connected does it with ``reaper_rights`` alone.

        Raises:
            OrchardError: the API server refuses, or does not answer.
        """
        if self._pid == os.getpid() and asyncio.get_running_loop() in self._lives:
            return await (await self.live()).reaper.once()
        cluster = await Cluster.connect(self.settings)
        try:
            key = await service_key(cluster, self.settings.key_secret)
            return await Reaper(cluster, key, Tombstones(cluster, key)).once()
        finally:
            await cluster.close()

    async def close(self) -> None:
        """Release what the running loop holds. Sandboxes live on."""
        loop = asyncio.get_running_loop()
        opening = self._lives.get(loop)
        if opening is None or self._pid != os.getpid():
            return
        if not _broken(opening) and opening.done():
            await opening.result().committer.close()
        self._lives.pop(loop, None)
        await cancel(opening)
        if not opening.cancelled() and opening.exception() is None:
            live = opening.result()
            await live.tombstones.written()
            await cancel(live.keeper)

    async def live(self) -> Live:
        """Return what the running loop holds, made on first use.

        Raises:
            InvalidArgument: there is no way to a cluster.
            Unavailable: the API server does not answer.
        """
        if self._pid != os.getpid():  # a fork inherits sockets that are its parent's
            self._lives, self._pid = {}, os.getpid()
        loop = asyncio.get_running_loop()
        opening = self._lives.get(loop)
        if opening is None or _broken(opening):
            for old in [known for known in self._lives if known.is_closed()]:
                del self._lives[old]
            opening = self._lives[loop] = asyncio.ensure_future(self._open())
        return await asyncio.shield(opening)

    async def _open(self) -> Live:
        cluster = await Cluster.connect(self.settings)
        try:
            key = await service_key(cluster, self.settings.key_secret)
        except BaseException:
            await cluster.close()
            raise
        cache, daemons, ready = PodCache(cluster), Daemons(key), set[str]()
        cache.listeners.append(lambda old, new: None if new or not old else _forget(ready, old))
        images, policies = Images(self.settings, cluster), Policies(cluster, self.settings)
        greet = Witness(cluster, self.settings, daemons).greet
        complaints = Complaints(cluster, cache)
        maker = Maker(self.settings, cluster, cache, key, greet, images.for_pod, complaints)
        tombstones = Tombstones(cluster, key)
        cache.listeners.append(tombstones.see)
        reaper = Reaper(cluster, key, tombstones)
        registry = Registry(self.settings, images)
        committer = Committer(self.settings, cluster, key, tombstones, registry, self, self._look_up)

        async def keep() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for work in (cache.run(), complaints.run(), tombstones.write()):
                        group.create_task(work)
                    group.create_task(reaper.keep(cache))
                    group.create_task(policies.keep(cache))
            finally:
                await daemons.close()
                await cluster.close()

        keeper = asyncio.ensure_future(keep())
        return Live(cluster, cache, key, daemons, images, policies, maker, tombstones, reaper, committer, ready, keeper)

    async def _look_up(self, sandbox_id: str) -> tuple[Json, Identity] | SandboxInfo:
        return await self._find(await self.live(), sandbox_id)

    async def _find(self, live: Live, sandbox_id: str) -> tuple[Json, Identity] | SandboxInfo:
        """Return the Pod of a sandbox, or what is remembered of one that has gone."""
        pod = await live.cache.get(name_of(check_id(sandbox_id, "sandbox id")))
        found = self._ours(live, pod) if pod is not None else None
        if found is not None and found[1].id == sandbox_id:
            await live.tombstones.check(*found)
            return found
        remembered = await live.tombstones.find(sandbox_id)
        if remembered is None:
            raise NotFound(f"no sandbox {sandbox_id}")
        return remembered

    @staticmethod
    def _ours(live: Live, pod: Json) -> tuple[Json, Identity] | None:
        who = live.key.owner(pod, labels.TENANT)
        return None if who is None else (pod, who)

    @staticmethod
    def _info(live: Live, pod: Json, who: Identity) -> SandboxInfo:
        if (ended := live.tombstones.known(who.id)) is not None:
            return ended
        info = info_of(pod, who)
        early = info.state in (State.PULLING, State.STARTING) and who.id in live.ready
        return replace(info, state=State.READY) if early else info

    async def _with_lease(self, live: Live, pod: Json, info: SandboxInfo) -> SandboxInfo:
        """Fill in what only sandboxd knows: whether it takes commands, and when it ends.

        It takes them up to a second before the kubelet says that it runs, and not before its network is shut.
        """
        address = progress_of(pod).address
        if info.state is State.GONE or address is None:
            return info
        try:
            if info.id not in live.ready:
                if not (await live.daemons.ask(info.id, address, "/health")).get("sealed", True):
                    return replace(info, state=State.STARTING)
                live.ready.add(info.id)
            lease = await live.daemons.ask(info.id, address, "/lease")
        except Unavailable:  # it has ended since, or is busy: then what is on record stands
            return info
        return replace(info, state=State.READY, expires_at=deaths.parse_time(lease.get("expires_at")))


def _broken(opening: asyncio.Task[Live]) -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().keeper.done()


def _forget(ready: set[str], pod: Json) -> None:
    ready.discard(notes(pod).get(ID, ""))


def _place(pod: Json, who: Identity) -> str:
    """Return where a sandbox stands in listings: oldest first, and a cursor."""
    return f"{int(created_at(pod).timestamp() * 1_000_000):020d}-{who.id}"
