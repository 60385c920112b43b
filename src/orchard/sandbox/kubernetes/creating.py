"""Making sandboxes: the turn, the Pod, and the wait for its daemon; what fails or is given up is removed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NoReturn, TypeAlias

from orchard.core.errors import Conflict, CreateFailed, InvalidArgument, NotFound, OrchardError, Unavailable
from orchard.core.retry import Patience
from orchard.core.tasks import finish
from orchard.sandbox.kubernetes import deaths, labels
from orchard.sandbox.kubernetes.cache import Following, PodCache
from orchard.sandbox.kubernetes.capacity import Capacity
from orchard.sandbox.kubernetes.client import Cluster, Forbidden
from orchard.sandbox.kubernetes.complaints import Complaints
from orchard.sandbox.kubernetes.groups import Groups
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.objects import Json, parts
from orchard.sandbox.kubernetes.pod import SPEC_HASH, ImageFacts, Plan, check, manifest, notes, spec_hash
from orchard.sandbox.kubernetes.quota import Quotas
from orchard.sandbox.kubernetes.record import Progress, progress_of
from orchard.sandbox.kubernetes.refusals import refusal
from orchard.sandbox.kubernetes.settings import KubernetesSettings
from orchard.sandbox.kubernetes.tombstones import has_run
from orchard.sandbox.kubernetes.toolvolumes import check_kept, check_tools, find_tools
from orchard.sandbox.kubernetes.turns import Turns
from orchard.sandbox.types import GROUP_LABEL, SandboxSpec, State

Greet: TypeAlias = Callable[[str, str, str], Awaitable[None]]
"""Of id, address and network: returns once the daemon answers and its network is as it was asked for."""
Resolve: TypeAlias = Callable[[str, str], Awaitable[ImageFacts | None]]
"""Of image and tenant."""

_log = logging.getLogger(__name__)
_UNDO_SECONDS = 15.0  # that a failed create waits for the end of its Pod
_TROUBLE_SECONDS = 30.0  # that a kubelet tries in vain what may succeed
_PULL_HOLDS = 10.0  # seconds that a pull may hold its turn: slow ones of one tenant are not to stop the others
_SILENCE = 10.0  # seconds without a word about any Pod, while somebody waits, after which the watch is made anew


@dataclass
class Split:
    """Where the time to ready went, in seconds."""

    queue: float = 0.0
    image: float = 0.0
    """Until the registry told of the image."""
    api: float = 0.0
    """Until the API server had the Pod."""
    schedule: float = 0.0
    """Until a node had it."""
    prepare: float = 0.0
    """Until the daemon was in it: its sandbox, network, the init container."""
    pull: float = 0.0
    """Until the image was there and its container could be started, as the status tells."""
    start: float = 0.0
    """Until the daemon answered."""
    _mark: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """Add what has passed since the last lap to ``name``."""
        now = time.monotonic()
        setattr(self, name, getattr(self, name) + now - self._mark)
        self._mark = now


class Maker:
    """Makes the sandboxes of one process."""

    def __init__(
        self,
        settings: KubernetesSettings,
        cluster: Cluster,
        cache: PodCache,
        key: ServiceKey,
        greet: Greet,
        resolve: Resolve,
        complaints: Complaints,
    ) -> None:
        self._complaints = complaints
        self._settings, self._cluster, self._cache = settings, cluster, cache
        self._key, self._greet, self._resolve = key, greet, resolve
        self._quotas, self._groups = Quotas(cluster, cache, key), Groups(cache, key)
        self._capacity = Capacity(cluster, settings.largest_node)
        self.turns = Turns(settings.creates)
        self.leaving = False
        """True: creates that are cancelled leave their Pods, which other replicas may have joined."""
        self.on_split: Callable[[Split], None] | None = None

    async def create(self, spec: SandboxSpec, key: str, most: int | None = None) -> tuple[Json, Identity]:
        """Make a sandbox, or wait for the one that the key already stands for; return its Pod, which is ready.

        The Pod of a key whose sandbox has ended meanwhile is returned as it is; one whose create failed is waited out,
        until its key is free. ``most`` is how many the tenant may
        have alive, over all replicas.

        Raises:
            CreateFailed: nothing is left of it.
            QuotaExceeded: the tenant has ``most`` already, or a ResourceQuota of the namespace had no room for as long
                as ``create_timeout``, and of a group at once; nothing is left of it.
            Conflict: another specification under the key, or a Pod that is not ours has its name.
            Unavailable: it was made under the key before, runs, and does not answer; or that create failed, and its Pod
                does not go for as long as ``create_timeout``.
            Unsupported: tools, and the cluster has no image volumes, or no repository of them is named.
        """
        check(spec)
        check_tools(spec.tools, self._settings)
        if not self._settings.daemon_image:
            raise InvalidArgument("the image of the daemon is not named", field="daemon_image", hint="see deploy/")
        split, tenant = Split(), spec.labels.get(labels.TENANT, "")
        name = pod_name(tenant, key)
        await self._groups.turn(spec, tenant)
        async with self.turns.turn(tenant) as end_turn:
            split.lap("queue")
            facts = await self._resolve(spec.image, tenant)
            await find_tools(spec.tools, self._settings, self._resolve, tenant)
            split.lap("image")
            who = Identity(self._cluster.namespace, name, new_sandbox_id(name), tenant)
            plan = Plan(spec, who, self._key.mac(who), self._key.token_sha256(who.id), datetime.now(UTC), facts)
            mine = who
            try:
                async with self._quotas.room(tenant, name, most):
                    pod, who, took = await self._post(plan, end_turn)
                split.lap("api")
                if deaths.classify(pod) is None:
                    pod = await self._quotas.within(who, most, took, self._ready(who, spec, split, end_turn))
            except CreateFailed as error:  # a verdict on the Pod, whoever made it
                self._spare(who, mine, error)
                await finish(self._undo(who, wait=True))
                raise
            except OrchardError:
                await finish(self._undo(mine, wait=True))
                raise
            except BaseException:
                if not self.leaving:
                    await finish(self._undo(mine, wait=False))
                raise
        if self.on_split is not None:
            self.on_split(split)
        return pod, who

    async def _post(self, plan: Plan, end_turn: Callable[[], None]) -> tuple[Json, Identity, float]:
        """Put the Pod on record; return it, whose it is, and the seconds that its last try took.

        While a ResourceQuota is used up, or the Pod of a create that failed under the key goes, try again, and hold up
        nobody. Groups do not wait for a quota: two of them would, each with a part of its room. The time on it is that
        of the try which made it, since one that is much older tells a copy.
        """
        spec, who = plan.spec, plan.who
        pods, patience = self._cluster.path("pods"), Patience(spec.create_timeout, first=0.5, most=10.0)
        while True:
            began = time.monotonic()
            body = manifest(replace(plan, created=datetime.now(UTC)), self._settings)
            try:
                pod = await finish(self._cluster.create(pods, body))
            except Conflict as error:
                try:
                    pod = await self._cluster.get(f"{pods}/{who.name}")
                except NotFound:  # it has just gone, or something else than its name stands against it
                    await patience.pause(error)
                    continue
                if deaths.undone(pod):
                    end_turn()
                    await patience.pause(_goes(who.name))
                    continue
            except (Forbidden, InvalidArgument) as error:
                if isinstance(error, Forbidden) and not error.ours:
                    raise
                refused, passing = refusal(error)
                if not passing or GROUP_LABEL in spec.labels:
                    raise refused from error
                end_turn()
                await patience.pause(refused)
                continue
            owner = self._key.owner(pod, labels.TENANT)
            if owner is None:
                raise Conflict(
                    f"a Pod {who.name} that is not of this service is in namespace {who.namespace}", reason="foreign",
                    hint="it is left alone; use another key, or find out who made it",
                )  # fmt: skip
            if notes(pod).get(SPEC_HASH) != spec_hash(spec):
                raise Conflict("the idempotency key was used for another specification", hint="use a new key")
            check_kept(pod, spec.tools)
            self._cache.put(pod)
            return pod, owner, time.monotonic() - began

    async def _ready(self, who: Identity, spec: SandboxSpec, split: Split, end_turn: Callable[[], None]) -> Json:
        """Return the Pod once its daemon answers; waiting for a node or a long pull, it holds up nobody."""
        pull = self._settings.pull_timeout
        limits = {"start": spec.create_timeout, "pull": pull, "trouble": min(pull, _TROUBLE_SECONDS)}
        greeting: asyncio.Task[None] | None = None
        hopeful = False
        spent = dict.fromkeys(limits, 0.0)
        with self._cache.following(who.name) as view:
            try:
                while True:
                    pod, progress = self._look(view, who, split)
                    clock = _clock(progress)
                    if progress.failure is not None:
                        raise CreateFailed(f"sandbox {who.id}: {progress.failure[1]}", reason=progress.failure[0])
                    if progress.unschedulable and not hopeful:
                        await self._hope(pod, who, progress.unschedulable)
                        hopeful = True
                    if progress.unschedulable:
                        self._groups.check(pod)
                    if progress.unschedulable or spent["pull"] + spent["trouble"] >= _PULL_HOLDS:
                        end_turn()
                    if progress.address is not None and greeting is None:
                        greeting = asyncio.ensure_future(self._greet(who.id, progress.address, spec.network))
                    began = time.monotonic()
                    await self._wait(view, greeting, limits[clock] - spent[clock])
                    spent[clock] += time.monotonic() - began
                    if greeting is not None and greeting.done():
                        greeting.result()
                        split.lap("start")
                        return view.pod or pod
                    if spent[clock] >= limits[clock]:
                        self._too_late(pod, who, progress, limits[clock])
            finally:
                if greeting is not None:
                    greeting.cancel()
                    await asyncio.wait([greeting])

    async def _hope(self, pod: Json, who: Identity, words: str) -> None:
        if await self._capacity.never_fits(pod):
            raise CreateFailed(f"sandbox {who.id}: {words}", reason="unschedulable")

    def _look(self, view: Following, who: Identity, split: Split) -> tuple[Json, Progress]:
        pod = view.pod
        owner = self._key.owner(pod, labels.TENANT) if pod is not None else None
        if pod is None or owner is None or owner.id != who.id or pod["metadata"].get("deletionTimestamp"):
            raise CreateFailed(f"sandbox {who.id} was deleted while it was made", reason="start_failed")
        progress = self._complaints.added_to(progress_of(pod), pod)
        split.lap(_lap(pod, progress))
        return pod, progress

    async def _wait(self, view: Following, greeting: asyncio.Task[None] | None, seconds: float) -> None:
        """Return after a change, a greeting that was answered, or a while."""
        changed = asyncio.ensure_future(view.changed())
        waiting = [changed] if greeting is None else [changed, greeting]
        try:
            await asyncio.wait(waiting, timeout=max(0.0, min(seconds, _SILENCE)), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.wait([changed])
        if self._cache.silent() > _SILENCE:
            self._cache.restart()

    def _too_late(self, pod: Json, who: Identity, progress: Progress, seconds: float) -> NoReturn:
        if progress.unschedulable:
            raise CreateFailed(f"sandbox {who.id}: {progress.unschedulable}", reason="unschedulable")
        if progress.pull_trouble:
            raise CreateFailed(f"sandbox {who.id}: {progress.pull_trouble}", reason="registry_unreachable")
        what = "its image was not there" if progress.state is State.PULLING else "it was not ready"
        last = self._complaints.about(pod)
        why = f"; {last.words}" if last is not None else ""
        raise CreateFailed(f"sandbox {who.id}: {what} in {seconds:g} s{why}", reason="start_timeout")

    def _spare(self, who: Identity, mine: Identity, error: CreateFailed) -> None:
        """Return if the Pod is to go; that we do not reach one is no reason to end it under those who do.

        Raises:
            Unavailable: another create has made it, and it runs.
        """
        pod = self._cache.known(who.name)
        if who.id != mine.id and error.reason == "start_timeout" and pod is not None and has_run(pod):
            raise Unavailable(
                f"sandbox {who.id}, which was made under this key before, does not answer: {error.message}",
                hint="it lives on, until its lease ends",
            ) from error

    async def _undo(self, who: Identity, *, wait: bool) -> None:
        """Remove the Pod that this very create has made, if any; another's under the same key stays.

        One that goes already is only waited for: a shorter grace would tell somebody's deletion as a failed create.
        """
        path = self._cluster.path("pods", who.name)
        try:
            pod = await self._cluster.get(path)
            owner = self._key.owner(pod, labels.TENANT)
            if owner is None or owner.id != who.id:
                return
            self._cache.put(pod)
            with self._cache.following(who.name) as view:
                if not pod["metadata"].get("deletionTimestamp"):
                    await self._cluster.delete(path, uid=pod["metadata"]["uid"], grace=deaths.UNDONE_GRACE)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_UNDO_SECONDS if wait else 0):
                        while view.pod is not None and view.pod["metadata"]["uid"] == pod["metadata"]["uid"]:
                            await view.changed()
        except NotFound:
            return
        except OrchardError as error:  # its deadline is noted on it: any replica's reaper removes it
            _log.warning("sandbox %s is left to the reaper: %s", who.id, error)


def _goes(name: str) -> Unavailable:
    return Unavailable(
        f"the Pod {name} of a create under this key, which failed, is not removed yet", reason="node",
        hint="is its node alive? the Pod goes once the node is back or removed",
    )  # fmt: skip


def _clock(progress: Progress) -> str:
    """Return which of the limits counts now."""
    if progress.pull_trouble is not None:
        return "trouble"
    return "pull" if progress.state is State.PULLING else "start"


def _lap(pod: Json, progress: Progress) -> str:
    """Return the part of the way that the Pod was on until now, by what its status says is done."""
    done = {each["type"] for each in parts(pod, "status", "conditions") if each["status"] == "True"}
    if progress.state is State.READY:
        return "pull"
    if "Initialized" in done and pod["spec"].get("initContainers"):
        return "prepare"
    return "schedule" if "PodScheduled" in done else "api"
