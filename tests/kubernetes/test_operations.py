"""What looks after the service in the cluster: an operator's monitor, the scaler, the budget of disruptions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.kubernetes.cluster.build import service_monitor
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.lifecycle import eventually
from tests.kubernetes.cluster.processes import wait_until
from tests.kubernetes.deployment import RELEASE, Deployment, deployed

from orchard.core.errors import MachineUnfit

pytestmark = pytest.mark.timeout(900)  # the images may have to be built first
KIND = "servicemonitors.monitoring.coreos.com"
LEAST, MOST = 2, 3
WATCHED: dict[str, Any] = {
    "replicas": 1,
    "autoscaling": {"enabled": True, "minReplicas": LEAST, "maxReplicas": MOST},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}


@pytest.fixture(scope="module")
def monitors(cluster: Cluster) -> Iterator[None]:
    """The cluster knows ServiceMonitors, without an operator; afterwards it does again if it did before."""
    if cluster.kubectl("get", "crd", KIND, "--ignore-not-found"):
        yield
        return
    cluster.kubectl("create", "-f", service_monitor())
    try:
        eventually(lambda: cluster.kubectl("get", "--raw", "/apis/monitoring.coreos.com/v1/servicemonitors"), KIND)
        yield
    finally:
        cluster.kubectl("delete", "crd", KIND, "--ignore-not-found")


@pytest.fixture(scope="module")
def release(cluster: Cluster, monitors: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One replica, and then a scaler and a monitor by an upgrade."""
    folder = tmp_path_factory.mktemp("release")
    with deployed(cluster, folder, replicas=1) as made:
        made.helm("upgrade", folder, **WATCHED)
        yield made


def targets(release: Deployment) -> tuple[list[str], dict[str, str]]:
    """Return what the operator makes of the monitor for Prometheus: URLs, and the header they are asked with."""
    spec = release.get("servicemonitor", RELEASE)["spec"]
    (endpoint,) = spec["endpoints"]
    assert "namespaceSelector" not in spec, "its own namespace"
    wanted = ",".join(f"{name}={value}" for name, value in spec["selector"]["matchLabels"].items())
    (service,) = release.get("services", "-l", wanted)["items"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    slices = release.get("endpointslices", "-l", f"kubernetes.io/service-name={service['metadata']['name']}")["items"]
    places = [
        f"http://{address}:{port['port']}{endpoint['path']}"
        for each in slices for port in each["ports"] if port["name"] == endpoint["port"]
        for one in each["endpoints"] for address in one["addresses"]
    ]  # fmt: skip
    named = endpoint["authorization"]["credentials"]
    key = release.secret(named["name"])[named["key"]].decode()
    return places, {"Authorization": f"{endpoint['authorization'].get('type', 'Bearer')} {key}"}


def test_every_object_of_the_chart_is_taken_to_the_letter(release: Deployment) -> None:
    """Helm lets pass what a kind does not know, and the API server drops it; kubectl is asked to be strict."""
    manifest = release.cluster.helm("-n", release.namespace, "get", "manifest", RELEASE)
    strict = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    told = release.cluster.kubectl(*strict, stdin=manifest)
    for kind in ("servicemonitor", "horizontalpodautoscaler", "poddisruptionbudget", "deployment", "networkpolicy"):
        assert f"{kind}." in told, told
    for right, wrong in (("interval:", "intervals:"), ("minReplicas:", "leastReplicas:")):
        with pytest.raises(MachineUnfit, match="unknown field"):
            release.cluster.kubectl(*strict, stdin=manifest.replace(right, wrong))


async def test_monitor_leads_to_the_metrics_of_every_replica(release: Deployment) -> None:
    assert release.get("servicemonitor", RELEASE)["metadata"]["labels"]["release"] == "prometheus"
    wait_until(lambda: release.replicas >= LEAST and release.whole(), "the replicas of the scaler")
    wait_until(lambda: len(targets(release)[0]) == len(release.pods()), "the word of each replica's address")
    urls, header = targets(release)
    assert sorted(urls) == sorted(f"{url}/v1/metrics" for url in release.urls())
    async with aiohttp.ClientSession() as http:
        for url in urls:
            async with http.get(url) as answer:
                assert answer.status == 401
            async with http.get(url, headers=header) as answer:
                assert (answer.status, answer.content_type) == (200, "text/plain")
                families = {each.name: each for each in text_string_to_metric_families(await answer.text())}
            assert {"orchard_requests", "orchard_create_seconds", "orchard_sandboxes"} <= set(families)
            answered = [each.value for each in families["orchard_requests"].samples if each.name.endswith("_total")]
            assert sum(answered) >= 1, "at least the one without a key"


def test_scaler_holds_its_least_and_says_what_it_reads(release: Deployment) -> None:
    wait_until(lambda: "ScalingActive" in release.scaler(), "the scaler's first look")
    assert release.replicas >= LEAST
    assert release.scaler()["AbleToScale"][0] == "True"
    reads = ("True", "ValidMetricFound") if release.cluster.tells_use else ("False", "FailedGetResourceMetric")
    wait_until(lambda: release.scaler()["ScalingActive"] == reads, f"{reads}")


def test_upgrade_leaves_the_number_to_the_scaler(release: Deployment, tmp_path: Path) -> None:
    wait_until(lambda: release.replicas >= LEAST, "the scaler's least")
    release.cluster.kubectl("-n", release.namespace, "scale", f"deployment/{RELEASE}", f"--replicas={MOST}")
    release.helm("upgrade", tmp_path, **WATCHED)
    kept = release.replicas
    assert kept == MOST or (release.cluster.tells_use and kept == LEAST), "without a measure it leaves what it finds"


def test_scaler_that_is_switched_on_begins_with_what_is_there(release: Deployment, tmp_path: Path) -> None:
    release.helm("upgrade", tmp_path, **{**WATCHED, "replicas": MOST, "autoscaling": {"enabled": False}})
    release.cluster.kubectl("-n", release.namespace, "scale", f"deployment/{RELEASE}", f"--replicas={MOST}")
    release.helm("upgrade", tmp_path, **WATCHED)
    assert release.replicas == MOST or (release.cluster.tells_use and release.replicas == LEAST)


def test_budget_lets_a_replica_go_at_a_time_also_at_the_scalers_least(release: Deployment) -> None:
    wait_until(lambda: release.replicas >= LEAST and release.whole(), "the replicas of the scaler")
    count = release.replicas
    wait_until(lambda: release.budget() == (count, count - 1, count, 1), f"{count} healthy, of which one may go")
    name = release.pods()[0]["metadata"]["name"]
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": release.namespace}}
    path = f"/api/v1/namespaces/{release.namespace}/pods/{name}/eviction"
    release.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(evict))
    wait_until(lambda: name not in {each["metadata"]["name"] for each in release.pods()}, f"the end of {name}")
    wait_until(lambda: release.budget() == (count, count - 1, count, 1), "another replica in its place")
