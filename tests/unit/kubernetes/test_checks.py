"""What `orchard deploy check` makes of a probe that fails, and of what it did not try; see tests/kubernetes too."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from orchard.core.errors import CreateFailed, OrchardError, Unavailable
from orchard.sandbox.kubernetes import KubernetesBackend, KubernetesSettings
from orchard.sandbox.kubernetes.checks import Finding, _probe, fitness, how_to_try, unmade, unread
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.daemons import Daemons
from orchard.sandbox.kubernetes.pod import CONTAINER
from orchard.sandbox.kubernetes.seal import Witness
from orchard.sandbox.types import DEFAULT_CREATE_TIMEOUT, SandboxSpec

RUNNING: dict[str, Any] = {"status": {"containerStatuses": [{"name": CONTAINER, "state": {"running": {}}}]}}
WAITING: dict[str, Any] = {"status": {"containerStatuses": [{"name": CONTAINER, "state": {"waiting": {}}}]}}
SHUT = Finding("network-policy", "ok", "")
MADE = Finding("sandbox", "ok", "")


class Pods:
    """The part of a cluster that a probe asks for its own Pod."""

    def __init__(self, pod: dict[str, Any]) -> None:
        self.pod, self.asked = pod, asyncio.Event()

    def path(self, *names: str) -> str:
        return "/".join(names)

    async def get(self, _: str) -> dict[str, Any]:
        self.asked.set()
        return self.pod


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[list[Finding]]]:
    """Return what a probe finds whose create does as is said, while its Pod is as is said."""
    monkeypatch.setattr("orchard.sandbox.kubernetes.checks._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("orchard.sandbox.kubernetes.checks._ANSWER_SECONDS", 0.05)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def find(error: OrchardError | None, pod: dict[str, Any]) -> list[Finding]:
        pods = Pods(pod)

        async def create(self: KubernetesBackend, spec: SandboxSpec, key: str) -> Any:
            assert spec.create_timeout == self.settings.pull_timeout == DEFAULT_CREATE_TIMEOUT
            if error is None:
                await asyncio.Event().wait()
            elif pod is RUNNING:
                await pods.asked.wait()
            raise cast("OrchardError", error)

        monkeypatch.setattr(KubernetesBackend, "create", create)
        return await _probe(cast("Cluster", pods), KubernetesSettings(daemon_image="example.com/daemon"))

    return find


LATE = CreateFailed("sandbox x: it was not ready in 300 s; no runtime for handler", reason="start_timeout")


async def test_a_pod_that_runs_and_is_not_reached_from_outside_is_unknown(
    probe: Callable[..., Awaitable[list[Finding]]],
) -> None:
    for error in (None, LATE):
        async with asyncio.timeout(10):
            (finding,) = await probe(error, RUNNING)
        assert (finding.name, finding.state) == ("sandbox", "unknown")
        assert "are not reached from here" in finding.meaning
        assert "orchard deploy check" in (finding.mend or "")


async def test_a_pod_that_never_ran_is_missing_wherever_one_looks_from(
    probe: Callable[..., Awaitable[list[Finding]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [await probe(LATE, WAITING)]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    found += [await probe(LATE, WAITING), await probe(LATE, {})]
    for (finding,) in found:
        assert (finding.name, finding.state, finding.reason) == ("sandbox", "missing", "start_timeout")
        assert "no runtime for handler" in finding.meaning


@pytest.mark.parametrize(
    ("error", "outside", "told"),
    [
        (CreateFailed("open", reason="not_sealed"), True, ("network-policy", "missing", "not_sealed")),
        (Unavailable("none", reason="no_witness"), True, ("sandbox", "unknown", "no_witness")),
        (Unavailable("none", reason="no_witness"), False, ("sandbox", "missing", "no_witness")),
        (LATE, False, ("sandbox", "missing", "start_timeout")),
        (CreateFailed("0/3 nodes", reason="unschedulable"), True, ("sandbox", "unknown", "unschedulable")),
        (CreateFailed("0/3 nodes", reason="unschedulable"), False, ("sandbox", "unknown", "unschedulable")),
        (CreateFailed("denied", reason="image_auth"), False, ("sandbox", "missing", "image_auth")),
    ],
)
def test_what_a_failed_create_tells_of_the_cluster(
    error: OrchardError, outside: bool, told: tuple[str, str, str]
) -> None:
    finding = unmade(error, outside=outside, ran=True)
    assert (finding.name, finding.state, finding.reason) == told
    assert error.message in finding.meaning


@pytest.mark.parametrize(
    ("reason", "state", "words"),
    [
        ("image_auth", "unknown", "credentials of their own"),
        ("registry_unreachable", "unknown", "may reach it"),
        ("image_not_found", "missing", "make images"), ("wrong_arch", "missing", "make images"),
    ],
)  # fmt: skip
def test_what_creates_leave_to_the_nodes_is_not_missing(reason: str, state: str, words: str) -> None:
    finding = unread(CreateFailed("its words", reason=reason))
    assert (finding.state, finding.reason) == (state, reason)
    assert words in (finding.mend or "")


def test_fit_is_only_what_was_seen() -> None:
    untried = Finding("sandbox", "unknown", "", "add a node")
    lack = Finding("admission", "missing", "")
    assert fitness([MADE, SHUT, Finding("registry", "unknown", "")]) is True
    assert fitness([MADE, SHUT, lack]) is fitness([untried, lack]) is False
    assert fitness([]) is fitness([untried]) is fitness([MADE, Finding("network-policy", "unknown", "")]) is None
    assert how_to_try([untried]) == "add a node"
    assert "run it in the cluster" in how_to_try([])


async def test_an_api_server_that_is_not_reached_names_the_setting_that_says_where_it_is() -> None:
    settings = KubernetesSettings(api_servers=["127.0.0.1:1"])
    witness = Witness(cast("Cluster", None), settings, cast("Daemons", None))
    with pytest.raises(Unavailable) as caught:
        await witness._reached()
    assert caught.value.reason == "no_witness"
    assert "api_servers" in (caught.value.hint or "")
