"""Why a Pod ended, when it is to be removed, and why an image could not be had: by what the cluster says."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchard.core.errors import CreateFailed
from orchard.sandbox.kubernetes.capacity import accepts
from orchard.sandbox.kubernetes.deaths import classify
from orchard.sandbox.kubernetes.images import fitting, platforms
from orchard.sandbox.kubernetes.pod import DEADLINE, ImageFacts
from orchard.sandbox.kubernetes.pulls import pull_reason
from orchard.sandbox.kubernetes.reap import overdue

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUNNING = {"running": {"startedAt": NOW.isoformat()}}
ASKED = {"deletionTimestamp": NOW.isoformat(), "deletionGracePeriodSeconds": 5}


def over(code: int, reason: str = "Error", note: str | None = None) -> dict[str, Any]:
    message = json.dumps({"reason": note, "detail": ""}) if note else ""
    times = {"startedAt": NOW.isoformat(), "finishedAt": NOW.isoformat()}
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, **times}}


def pod(
    state: dict[str, Any], phase: str = "Failed", *, disruption: str | None = None, restarts: int = 0,
    metadata: dict[str, Any] | None = None, beside: dict[str, Any] | None = None, **status: Any,
) -> dict[str, Any]:  # fmt: skip
    container = {"name": "sandbox", "state": state, "lastState": {}, "restartCount": restarts}
    containers = [container, {"name": "mesh", "state": beside}] if beside else [container]
    told = [{"type": "DisruptionTarget", "status": "True", "reason": disruption, "message": "m"}] if disruption else []
    return {
        "metadata": {"name": "x", "annotations": {}, **(metadata or {})}, "spec": {"activeDeadlineSeconds": 100},
        "status": {"phase": phase, "containerStatuses": containers, "conditions": told, **status},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (pod(over(0, "Completed", "ttl"), "Succeeded"), "ttl"),
        (pod(over(0, "OOMKilled", "idle"), "Succeeded"), "idle"),  # a command was out of memory, sometime before
        (pod(over(137, "OOMKilled")), "oom"),
        (pod(over(137, "Error", "ttl")), "unknown"),  # not sandboxd's own exit code: anybody may have written the note
        (pod(over(143, "Error", "signal"), reason="Evicted", message="disk"), "evicted"),
        (pod(over(143, "Error", "signal"), reason="DeadlineExceeded"), "ttl"),
        (pod(over(143, "Error", "signal"), disruption="PreemptionByScheduler", metadata=ASKED), "evicted"),
        (pod(over(143, "Error", "signal"), disruption="EvictionByEvictionAPI", metadata=ASKED), "evicted"),
        (pod(over(143, "Error", "signal"), metadata=ASKED), "deleted"),
        (pod(over(0, "Completed", "ttl"), "Succeeded", metadata=ASKED), "ttl"),  # and then it was deleted
        (pod(over(143, "Error", "signal")), "signal"),
        (pod(over(143, "Error", "signal"), "Running"), None),  # who asked for it is about to be told
        (pod(over(137), "Running", beside=RUNNING), "unknown"),  # its phase stays so for as long as that one runs
        (pod(over(137), "Pending", beside={"waiting": {"reason": "ImagePullBackOff"}}), "unknown"),
        (pod(over(143, "Error", "signal"), "Running", beside=RUNNING), "signal"),
        (pod(over(143, "Error", "signal"), "Running", beside=RUNNING, reason="Evicted"), "evicted"),
        (pod(over(143, "Error", "signal"), "Running", beside=RUNNING, metadata=ASKED), "deleted"),
        (pod(over(137), "Running", beside=over(0)), None),
        (pod(RUNNING, "Running", beside=over(1)), None),
        (pod({"waiting": {"reason": "PodInitializing"}}, "Pending", beside=over(1)), None),
        (pod(RUNNING, "Running", disruption="DeletionByTaintManager", metadata=ASKED), "node_lost"),
        (pod(RUNNING, "Running", disruption="DeletionByTaintManager"), None),
        (pod(RUNNING, "Running", metadata=ASKED), "deleted"),
        (pod(over(137, "ContainerStatusUnknown"), restarts=1), "node_lost"),
        (pod(RUNNING, "Running", restarts=1), "restarted"),
        (pod(RUNNING, "Running"), None),
    ],
)
def test_the_reason_of_an_end(given: dict[str, Any], reason: str | None) -> None:
    death = classify(given)
    assert (death.reason if death else None) == reason


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("[" * 4096, "unknown"),  # deeper than the parser goes
        ('{"reason": "ttl", "detail": ' + "[" * 2000 + "]" * 2000 + "}", "unknown"),
        ('{"reason": ["ttl"], "detail": ""}', "unknown"),
        ('{"reason": "ttl", "detail": "\\ud800"}', "ttl"),
    ],
)
def test_last_words_that_a_command_has_put_there_end_nothing_of_ours(note: str, reason: str) -> None:
    """It may win the race against sandboxd, which writes them last; each replica reads them, and writes them down."""
    state = over(0, "Completed")
    state["terminated"]["message"] = note
    death = classify(pod(state, "Succeeded"))
    assert death is not None
    assert death.reason == reason
    assert (death.detail or "").encode("utf-8")


def test_a_deletion_is_told_as_of_when_it_was_asked_for() -> None:
    death = classify(pod(RUNNING, "Running", metadata=ASKED))
    assert death is not None
    assert death.at == NOW - timedelta(seconds=5)


@pytest.mark.parametrize(
    ("given", "after", "why"),
    [
        (pod(over(0, "Completed", "ttl"), "Succeeded"), 0, "ended"),
        (pod(over(0, "Completed", "ttl"), "Succeeded", metadata=ASKED), 0, None),  # it is on its way
        (pod(over(137), "Running", beside=RUNNING), 0, "ended"),
        (pod({"waiting": {}}, "Pending", metadata={"annotations": {DEADLINE: NOW.isoformat()}}), 1, "never_started"),
        (pod({"waiting": {}}, "Pending", metadata={"annotations": {DEADLINE: NOW.isoformat()}}), -1, None),
        (pod(RUNNING, "Running", metadata={"annotations": {DEADLINE: NOW.isoformat()}}), 1, None),
        (pod(RUNNING, "Running", startTime=NOW.isoformat()), 159, None),
        (pod(RUNNING, "Running", startTime=NOW.isoformat()), 161, "overdue"),
    ],
)
def test_what_is_removed_and_when(given: dict[str, Any], after: float, why: str | None) -> None:
    assert overdue(given, NOW + timedelta(seconds=after)) == why


def test_an_index_names_an_image_for_each_architecture_of_linux() -> None:
    index = {
        "manifests": [
            {"digest": "sha256:w", "platform": {"os": "windows", "architecture": "amd64"}},
            {"digest": "sha256:a", "platform": {"os": "linux", "architecture": "amd64"}},
            {"digest": "sha256:v7", "platform": {"os": "linux", "architecture": "arm", "variant": "v7"}},
            {"digest": "sha256:x", "platform": {"os": "unknown", "architecture": "unknown"}},
        ]
    }
    assert platforms(index) == {"amd64": "sha256:a", "arm": "sha256:v7"}
    assert platforms({"config": {}, "layers": []}) == {}


def test_an_image_is_held_to_the_nodes_that_can_run_it() -> None:
    facts = ImageFacts("r@d", "d", architectures=("amd64", "arm64"))
    assert fitting("i", facts, frozenset()).architectures == ()
    assert fitting("i", facts, frozenset({"amd64"})).architectures == ()
    assert fitting("i", facts, frozenset({"amd64", "s390x"})).architectures == ("amd64",)
    with pytest.raises(CreateFailed) as caught:
        fitting("i", facts, frozenset({"s390x"}))
    assert caught.value.reason == "wrong_arch"


def test_a_node_is_possible_by_its_labels_and_taints() -> None:
    node = {
        "metadata": {"labels": {"pool": "a"}},
        "spec": {"taints": [
            {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {"key": "soft", "effect": "PreferNoSchedule"},
        ]},
    }  # fmt: skip
    exact = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    for toleration in (exact, {"key": "gpu", "operator": "Exists"}, {"operator": "Exists"}):
        assert accepts(node, {"pool": "a"}, [toleration])
    for toleration in (
        {**exact, "value": "no"},
        {**exact, "effect": "NoExecute"},
        {"key": "tpu", "operator": "Exists"},
    ):
        assert not accepts(node, {}, [toleration])
    assert not accepts(node, {"pool": "b"}, [exact])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('failed to pull and unpack image "h/x:1": no match for platform in manifest: not found', "wrong_arch"),
        ('failed to resolve reference "h/x:1": h/x:1: not found', "image_not_found"),
        ("unexpected status from HEAD request to http://h/v2/x/manifests/1: 401 Unauthorized", "image_auth"),
        ("pull access denied, repository does not exist or may require authorization", "image_auth"),
        ("failed to authorize: failed to fetch oauth token: unexpected status: 403 Forbidden", "image_auth"),
        (
            "failed to authorize: failed to fetch anonymous token: unexpected status: 504 Gateway",
            "registry_unreachable",
        ),
        ('failed to authorize: Post "https://h/token": dial tcp 192.0.2.1:443: i/o timeout', "registry_unreachable"),
        ("Requesting bearer token: invalid status code from registry 403 (Forbidden)", "image_auth"),
        ("reading manifest 1 in h/x: denied: access forbidden", "image_auth"),
        ("too many requests to registry", "registry_unreachable"),
        ("unexpected status from HEAD request to https://h/v2: 429 Too Many Requests", "registry_unreachable"),
        ("dial tcp 192.0.2.1:443: i/o timeout", "registry_unreachable"),
    ],
)
def test_why_a_kubelet_could_not_pull(words: str, reason: str) -> None:
    assert pull_reason(words) == reason
