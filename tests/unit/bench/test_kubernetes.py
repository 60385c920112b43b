"""The measurements on a cluster, as far as they are without one: choice, rows, and what simulated Pods are given."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.__main__ import CLUSTER, chosen
from bench.kubernetes import ready, run
from bench.kubernetes.place import IN_NAME_ONLY, addressed, is_ready
from bench.kubernetes.shadows import shadow_config
from tests.kubernetes.replicas import write_settings

from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.sandbox.kubernetes.creating import Split
from orchard.sandbox.kubernetes.identity import Identity
from orchard.sandbox.kubernetes.pod import Plan, manifest
from orchard.sandbox.kubernetes.settings import load_settings
from orchard.sandbox.types import SandboxSpec


def pod(**metadata: Any) -> dict[str, Any]:
    who = Identity("here", "sb-x", "sb-x-1", "")
    plan = Plan(SandboxSpec("r/i:1", network="open", ttl=77), who, "mac", "ab" * 32, datetime.now(UTC), None)
    made = manifest(plan, KubernetesSettings(daemon_image="r/d:1", **IN_NAME_ONLY))
    return made | {"metadata": made["metadata"] | metadata, "status": {"podIP": "127.64.0.9"}}


def test_a_run_of_everything_needs_no_cluster_and_kubernetes_means_what_does() -> None:
    assert not set(CLUSTER) & set(chosen(None))
    assert chosen(["kubernetes"]) == list(CLUSTER)
    assert chosen(["kubernetes-run", "run", "kubernetes"])[:2] == ["kubernetes-run", "run"]


def test_a_shadow_is_the_daemon_of_the_pod_at_the_pods_address_and_touches_nothing_of_the_machine(
    tmp_path: Path,
) -> None:
    config = shadow_config(pod(), "127.64.0.9", str(tmp_path))
    assert config["listen"] == {"tcp": "127.64.0.9:8421"}
    assert (config["id"], config["token_sha256"], config["lease"]["ttl_s"]) == ("sb-x-1", "ab" * 32, 77)
    assert (config["state_dir"], config["death_file"], config["seal"]) == (str(tmp_path), "", None)
    assert config["ipv6"] == ""  # else it would take IPv6 from this machine


def test_a_pod_that_is_about_to_go_has_no_address_any_more() -> None:
    assert addressed(pod()) == "127.64.0.9"
    assert addressed(pod(deletionTimestamp="2026-01-01T00:00:00Z")) is None


def test_ready_is_what_the_kubelet_calls_so() -> None:
    def told(status: str) -> dict[str, Any]:
        return {
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": status}]}
        }

    assert is_ready(told("True"))
    assert not is_ready(told("False"))
    assert not is_ready({"status": {}})
    assert not is_ready(None)


def test_settings_reach_a_service_as_they_are(tmp_path: Path) -> None:
    given = KubernetesSettings(daemon_image="r/d:1", requests={"cpu": "10m"}, kubeconfig=tmp_path / "c", **IN_NAME_ONLY)
    write_settings(tmp_path / "kubernetes.toml", given)
    read = load_settings(tmp_path / "kubernetes.toml")
    assert json.dumps(asdict(read), default=str) == json.dumps(asdict(given), default=str)


def test_what_a_run_adds_is_measured_from_the_pods_own_fork() -> None:
    seconds = {"through the service": [0.006], "straight to the Pod": [0.004], run.FORK: [0.002], run.EXEC: [0.1]}
    found = {row.name: row.plain("kubernetes-run", {}) for row in run.rows(seconds)}
    beyond = found["run true, through the service, beyond the Pod's own fork, p50"]
    assert (beyond["value"], beyond["target"], beyond["met"]) == (4.0, "<= 5 ms", True)
    p50 = found["run true, through the service, p50"]
    assert (p50["value"], p50["floor"], p50["peers"]) == (6.0, {run.FORK: 2.0}, {run.EXEC: 100.0})


def test_the_parts_of_the_time_to_ready_are_those_that_the_backend_tells_of() -> None:
    fields = [name for names in ready.PARTS for name in names]
    assert sorted(fields) == sorted(name for name in vars(Split()) if not name.startswith("_"))
    rows = ready.rows_of("x", [2.0, 4.0, 3.0], [1.0], [Split(pull=1.0, start=0.5), Split(pull=0.0, start=2.5)])
    found = {row.name.partition(", ")[2]: row.value for row in rows}
    assert (found["x, p50"], found["x, slowest"]) == (3.0, 4.0)
    assert found["x, of it pull and start: until the daemon answers"] == 2.0
