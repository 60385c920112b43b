"""What kubelets say goes wrong with Pods, as they say it: the status of a Pod tells it up to ten seconds later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from orchard.core.errors import OrchardError, Unauthorized
from orchard.core.retry import Patience
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster, Expired
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.pod import CONTAINER
from orchard.sandbox.kubernetes.pulls import FINAL, pull_reason
from orchard.sandbox.kubernetes.record import Progress
from orchard.sandbox.types import State

_log = logging.getLogger(__name__)
_SELECTOR = "involvedObject.kind=Pod,type=Warning,reason!=FailedScheduling"
_FOREVER = 10.0**9
_MOST = 5000
_NO_SANDBOX = "FailedCreatePodSandBox"
"""A kubelet's reason while a Pod has no network yet, so nothing can be pulled for it."""
_NO_SANDBOX_SECONDS = 60.0  # that it counts: the kubelet tries again, and says so, every 10 to 15 s
_REFUSED_SECONDS = 60.0  # until it is tried again: rights are granted while a process runs


@dataclass(frozen=True)
class Complaint:
    """The last word on a Pod."""

    words: str
    verdict: str | None
    """One of ``CREATE_REASONS`` where another try does not mend it."""
    at: float = field(default_factory=time.monotonic)


class Complaints:
    """Follows the warnings of the namespace; without the right to do so nothing is known, and the status is waited for.

    The right is asked for again every minute, and that it is missing is said once.

    Args:
        cluster: whose events.
        cache: is told to look again at a Pod of which something final is heard.
    """

    def __init__(self, cluster: Cluster, cache: PodCache) -> None:
        self._cluster, self._cache = cluster, cache
        self._heard: OrderedDict[str, Complaint] = OrderedDict()

    def about(self, pod: Json) -> Complaint | None:
        """Return the last word on this very Pod."""
        return self._heard.get(str(pod["metadata"]["uid"]))

    def added_to(self, progress: Progress, pod: Json) -> Progress:
        """Return the progress with what the Pod's status does not tell, or not yet.

        Without an init container a Pod whose network cannot be made looks like one whose image is pulled: before
        Kubernetes 1.36 its condition PodReadyToStartContainers is false through the first pulls, too.
        """
        complaint = self.about(pod)
        if complaint is None or progress.state is State.READY:
            return progress
        if complaint.verdict is not None:
            return replace(progress, failure=progress.failure or (complaint.verdict, complaint.words))
        lately = time.monotonic() - complaint.at < _NO_SANDBOX_SECONDS
        if lately and complaint.words.startswith(f"{_NO_SANDBOX}:") and progress.address is None:
            return replace(progress, state=State.STARTING)
        return progress

    async def run(self) -> None:
        """Follow them until cancelled."""
        path, version, refused = self._cluster.path("events"), "", False
        patience = Patience(_FOREVER, first=0.2, most=10.0)
        while True:
            try:
                if not version:
                    page = await self._cluster.get(path, fieldSelector=_SELECTOR, limit="1")
                    version = str(page["metadata"]["resourceVersion"])
                async with self._cluster.watch(path, version, fieldSelector=_SELECTOR) as events:
                    refused = False
                    async for event in events:
                        version = str(event["object"]["metadata"]["resourceVersion"])
                        if event["type"] in ("ADDED", "MODIFIED"):
                            self._hear(event["object"])
                patience.reset()
            except Expired:
                version = ""
            except Unauthorized as error:
                if not refused:
                    _log.warning("without events a failing pull is told up to ten seconds later: %s", error)
                version, refused = "", True
                await asyncio.sleep(_REFUSED_SECONDS)
            except OrchardError as error:
                await patience.pause(error)

    def _hear(self, event: Json) -> None:
        about, words = part(event, "involvedObject"), str(event.get("message") or "")
        reason = pull_reason(words)
        ours = event.get("reason") == "Failed" and about.get("fieldPath") == f"spec.containers{{{CONTAINER}}}"
        verdict = reason if ours and reason in FINAL else None
        uid = str(about.get("uid"))
        if uid in self._heard and verdict is None and self._heard[uid].verdict is not None:
            return
        self._heard[uid] = Complaint(f"{event.get('reason')}: {words}", verdict)
        if len(self._heard) > _MOST:
            self._heard.popitem(last=False)
        if verdict is not None:
            self._cache.nudge(str(about.get("name")))
