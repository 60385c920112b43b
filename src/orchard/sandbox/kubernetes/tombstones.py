"""What is remembered of sandboxes that have ended: an Event each, which the API server keeps for an hour or more.

Its name follows from the sandbox's id, so of all replicas that see a death one writes it, and the first word stands.
It carries a proof of ours, so nobody else can tell how a sandbox ended. An environment is not in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import TypeAdapter

from orchard.core.errors import Conflict, NotFound, OrchardError, Unauthorized
from orchard.sandbox.kubernetes import labels
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.deaths import Death, classify, parse_time
from orchard.sandbox.kubernetes.identity import ID, MAC, Identity, ServiceKey
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import CONTAINER, notes
from orchard.sandbox.kubernetes.record import created_at, info_of
from orchard.sandbox.types import SandboxInfo, State

RECORD = "orchard/tombstone"
"""Annotation of the Event: the ``SandboxInfo`` as JSON."""
_log = logging.getLogger(__name__)
_RECORD = TypeAdapter(SandboxInfo)
_MOST = 10_000
_ON_ITS_WAY = (None, "PodInitializing", "ContainerCreating")
_FLUSH_SECONDS = 3.0
_LATE_SECONDS = 5.0
_COPY_SECONDS = 900.0  # no create waits so long for the API server to take its Pod
_LONGEST_MESSAGE = 1024  # bytes; the API server takes no more


class Tombstones:
    """The ends that this process has seen, and those that it is told of."""

    def __init__(self, cluster: Cluster, key: ServiceKey) -> None:
        self._cluster, self._key = cluster, key
        self._graves: OrderedDict[str, SandboxInfo] = OrderedDict()
        self._first: OrderedDict[str, None] = OrderedDict()
        self._unwritten: asyncio.Queue[tuple[Json, Identity, Death]] = asyncio.Queue()

    def see(self, old: Json | None, new: Json | None) -> None:
        """Take note of a change of a Pod, if it is the end of a sandbox of ours; ``write`` makes it known to all."""
        pod = new or old
        who = self._key.owner(pod, labels.TENANT) if pod is not None else None
        if pod is None or who is None or who.id in self._graves or not _may_have_run(pod):
            return
        death = classify(pod)
        if death is None and new is None:
            death = Death("unknown", "its Pod vanished while nobody watched", datetime.now(UTC))
        if death is not None:
            self._keep(_gone(pod, who, death))
            self._unwritten.put_nowait((pod, who, death))

    async def write(self) -> None:
        """Write what ``see`` has noted, until cancelled."""
        while True:
            pod, who, death = await self._unwritten.get()
            try:
                await self.bury(pod, who, death)
            except OrchardError as error:  # another replica saw it too, or the reaper will as long as there is a Pod
                _log.warning("how sandbox %s ended is not written: %s", who.id, error)
            finally:
                self._unwritten.task_done()

    async def written(self) -> None:
        """Return once all that ``see`` has noted is written, or after a few seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._unwritten.join()

    async def bury(self, pod: Json, who: Identity, death: Death) -> SandboxInfo:
        """Write how a sandbox ended and return what is told of it from now on; the first word stands.

        Raises:
            OrchardError: it is not written.
        """
        gone = self._keep(_gone(pod, who, death))
        try:
            await self._cluster.create(self._cluster.path("events"), self._event(pod, who, gone))
        except Conflict:
            gone = await self._read(who.id) or gone
            self._graves[who.id] = gone
        except Unauthorized as error:  # then the end itself matters more
            _log.warning("how sandbox %s ended may not be written: %s", who.id, error)
        return gone

    async def check(self, pod: Json, who: Identity) -> None:
        """Find out whether the Pod is a copy of one that has ended: then it is a blank one, and ``known`` says so."""
        uid = str(pod["metadata"]["uid"])
        late = _late_by(pod)
        if who.id in self._graves or uid in self._first or late <= _LATE_SECONDS:
            return
        if await self.find(who.id) is None:
            if late > _COPY_SECONDS:  # what befell the first one is forgotten by now
                copied = Death("restarted", "its Pod is a copy of one that is gone", created_at(pod))
                self._keep(_gone(pod, who, copied))
                return
            self._first[uid] = None
            if len(self._first) > _MOST:
                self._first.popitem(last=False)

    def known(self, sandbox_id: str) -> SandboxInfo | None:
        """Return what this process remembers, or None."""
        return self._graves.get(sandbox_id)

    async def find(self, sandbox_id: str) -> SandboxInfo | None:
        """Return what anybody remembers, or None."""
        found = self._graves.get(sandbox_id) or await self._read(sandbox_id)
        return None if found is None else self._keep(found)

    def _keep(self, gone: SandboxInfo) -> SandboxInfo:
        kept = self._graves.setdefault(gone.id, gone)
        if len(self._graves) > _MOST:
            self._graves.popitem(last=False)
        return kept

    async def _read(self, sandbox_id: str) -> SandboxInfo | None:
        try:
            event = await self._cluster.get(self._cluster.path("events", sandbox_id))
        except (NotFound, Unauthorized):
            return None
        record = notes(event).get(RECORD, "")
        proven = self._key.proves(notes(event).get(MAC, ""), self._cluster.namespace, sandbox_id, record)
        return _RECORD.validate_json(record) if proven else None

    def _event(self, pod: Json, who: Identity, gone: SandboxInfo) -> Json:
        record = _RECORD.dump_json(gone).decode()
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "apiVersion": "v1", "kind": "Event", "type": "Normal", "reason": "SandboxGone",
            "metadata": {
                "name": who.id, "namespace": who.namespace,
                "annotations": {
                    ID: who.id, RECORD: record, MAC: self._key.tombstone(who.namespace, who.id, record),
                },
            },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": who.name, "namespace": who.namespace,
                "uid": pod["metadata"]["uid"],
            },
            "message": _short(f"{gone.reason}: {gone.detail or ''}".strip(": ")),
            "source": {"component": "orchard"}, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip


def has_run(pod: Json) -> bool:
    """Return True if the kubelet says that the sandbox's container was started.

    A Pod that is deleted before is given a container that ended, but never began.
    """
    main = _main(pod)
    ended = part(main, "state", "terminated")
    began = ended.get("startedAt") or (ended and not pod["metadata"].get("deletionTimestamp"))
    return bool("running" in part(main, "state") or began or main.get("restartCount"))


def _may_have_run(pod: Json) -> bool:
    """Return True if somebody may know of the sandbox: its daemon answers before the kubelet says that it runs."""
    state = part(_main(pod), "state")
    on_its_way = "terminated" not in state and part(state, "waiting").get("reason") in _ON_ITS_WAY
    return has_run(pod) or bool(part(pod, "status").get("podIP") and on_its_way)


def _main(pod: Json) -> Json:
    return next((each for each in parts(pod, "status", "containerStatuses") if each["name"] == CONTAINER), Json())


def _late_by(pod: Json) -> float:
    """Return how many seconds after its note of the time it was made: some under a slow server, or it is a copy."""
    made = parse_time(pod["metadata"].get("creationTimestamp"))
    return 0.0 if made is None else (made - created_at(pod)).total_seconds()


def _gone(pod: Json, who: Identity, death: Death) -> SandboxInfo:
    info = replace(info_of(pod, who), state=State.GONE, expires_at=None, env={})
    return replace(info, reason=death.reason, detail=death.detail, ended_at=death.at)


def _short(message: str) -> str:
    return message.encode()[:_LONGEST_MESSAGE].decode("utf-8", "ignore")
