"""Which of the groups that wait for room comes first, and for how long."""

from datetime import UTC, datetime, timedelta
from typing import Any

from orchard.sandbox.kubernetes import KubernetesSettings, labels
from orchard.sandbox.kubernetes.groups import outranked
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.pod import Plan, manifest
from orchard.sandbox.types import GROUP_LABEL, SandboxSpec

KEY = ServiceKey(b"k" * 32)
SETTINGS = KubernetesSettings(daemon_image="registry.example/sandboxd:1")
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def pod(tenant: str, group: str, *, after: int = 0, waits: bool = False, key: ServiceKey = KEY) -> dict[str, Any]:
    """A Pod as the API server shows it, made so many seconds after ``BEGAN``."""
    name, made = pod_name(tenant, f"{group} {after}"), BEGAN + timedelta(seconds=after)
    who = Identity("boxes", name, new_sandbox_id(name), tenant)
    spec = SandboxSpec("registry.example/x:1", labels={GROUP_LABEL: group, labels.TENANT: tenant})
    body = manifest(Plan(spec, who, key.mac(who), key.token_sha256(who.id), made, None), SETTINGS)
    body["metadata"] |= {"namespace": "boxes", "creationTimestamp": f"{made:%Y-%m-%dT%H:%M:%SZ}"}
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    return {**body, "status": {"phase": "Pending", "conditions": [placed] if waits else []}}


def test_a_group_that_waits_comes_before_younger_ones_for_ten_minutes_and_no_longer() -> None:
    pods = [pod("a", "old", waits=True), pod("b", "young", after=1)]
    for seconds, young, new, old in ((30, True, False, None), (599, True, False, None), (600, None, None, None)):
        now = BEGAN + timedelta(seconds=seconds)
        assert outranked(pods, KEY, ("b", "young"), now) is young
        assert outranked(pods, KEY, ("c", "new"), now) is new
        assert outranked(pods, KEY, ("a", "old"), now) is old


def test_a_further_pod_gives_a_group_no_more_time() -> None:
    pods = [pod("a", "old"), pod("a", "old", after=500, waits=True)]
    assert outranked(pods, KEY, ("b", "new"), BEGAN + timedelta(seconds=599)) is False
    assert outranked(pods, KEY, ("b", "new"), BEGAN + timedelta(seconds=601)) is None


def test_only_proven_pods_that_wait_count() -> None:
    pods = [pod("a", "old"), pod("x", "forged", waits=True, key=ServiceKey(b"x" * 32))]
    assert outranked(pods, KEY, ("b", "new"), BEGAN + timedelta(seconds=30)) is None
