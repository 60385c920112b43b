"""Which of a create's clocks runs while its Pod is not ready, and what is told when it has run out."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from orchard.core.errors import CreateFailed, NotFound
from orchard.sandbox.kubernetes import KubernetesSettings, complaints
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.complaints import Complaints
from orchard.sandbox.kubernetes.creating import Maker
from orchard.sandbox.kubernetes.identity import ServiceKey
from orchard.sandbox.types import SandboxSpec

UNREADY = {"type": "PodReadyToStartContainers", "status": "False"}  # while it pulls, too, before Kubernetes 1.36
NO_NETWORK = ("FailedCreatePodSandBox", "no address is left")


class OnePod:
    """A cluster whose kubelet comes no further than ``ContainerCreating``, and says why, or does not."""

    namespace = "boxes"

    def __init__(self, *said: str) -> None:
        self.said, self.pods = said, dict[str, dict[str, Any]]()
        self.cache = PodCache(cast("Cluster", self))
        self.complaints = Complaints(cast("Cluster", self), self.cache)

    def path(self, kind: str, name: str = "") -> str:
        return f"/{kind}/{name}".rstrip("/")

    async def get(self, path: str) -> dict[str, Any]:
        if path not in self.pods:
            raise NotFound(path)
        return self.pods[path]

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        made = datetime.now(UTC).isoformat()
        body["metadata"] |= {"uid": "u", "resourceVersion": "1", "creationTimestamp": made}
        creating = {"name": "sandbox", "state": {"waiting": {"reason": "ContainerCreating"}}}
        body["status"] = {"phase": "Pending", "conditions": [UNREADY], "containerStatuses": [creating]}
        self.pods[f"{path}/{body['metadata']['name']}"] = body
        if self.said:
            reason, message = self.said
            event = {"involvedObject": {"uid": "u"}, "reason": reason, "message": message}
            self.complaints._hear(event)
        return body

    async def delete(self, path: str, *, uid: str, grace: int) -> None:
        pod = self.pods.pop(path)
        self.cache.drop(pod["metadata"]["name"], uid)

    async def make(self) -> None:
        settings = KubernetesSettings(daemon_image="h/sandboxd:1", injection="image-volume", pull_timeout=0.6)

        async def nothing(*_: str) -> None:
            return None

        key, cluster = ServiceKey(b"k" * 32), cast("Cluster", self)
        maker = Maker(settings, cluster, self.cache, key, nothing, nothing, self.complaints)
        await maker.create(SandboxSpec("h/x:1", create_timeout=0.3), "key")


@pytest.mark.parametrize(
    ("said", "lasts", "told"),
    [
        (NO_NETWORK, 60.0, "it was not ready in 0.3 s; FailedCreatePodSandBox: no address is left"),
        (NO_NETWORK, 0.0, "its image was not there in 0.6 s; FailedCreatePodSandBox: no address is left"),
        ((), 60.0, "its image was not there in 0.6 s"),
        (("FailedMount", "no volume"), 60.0, "its image was not there in 0.6 s; FailedMount: no volume"),
    ],
)
async def test_a_pod_without_network_is_not_taken_for_one_whose_image_is_pulled(
    said: tuple[str, ...], lasts: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the daemon from an image volume; a network that came after all, long ago, is a pull again."""
    monkeypatch.setattr(complaints, "_NO_SANDBOX_SECONDS", lasts)
    with pytest.raises(CreateFailed) as caught:
        await OnePod(*said).make()
    assert (caught.value.reason, caught.value.message.partition(": ")[2]) == ("start_timeout", told)
