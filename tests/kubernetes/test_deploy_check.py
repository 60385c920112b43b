"""`orchard deploy check` names what a cluster lacks, each lack made for real."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for

from orchard.core.errors import InvalidArgument
from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.sandbox.kubernetes.checks import Finding, examine
from orchard.sandbox.kubernetes.client import Cluster as Client

ORCHARD = Path(sys.executable).parent / "orchard"


async def found(settings: KubernetesSettings, *, probe: bool = False) -> dict[str, Finding]:
    return {finding.name: finding async for finding in examine(settings, probe=probe)}


def check(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "ORCHARD"))}
    argv = [ORCHARD, "deploy", "check", *words]
    return subprocess.run(argv, env={**kept, **env}, capture_output=True, text=True, timeout=200, check=False)


def write(settings: KubernetesSettings, file: Path) -> str:
    """Write the settings as the command reads them."""
    lines = [f'{name} = "{getattr(settings, name)}"' for name in ("namespace", "kubeconfig", "daemon_image")]
    cidrs, plain = list(settings.ingress.cidrs), list(settings.insecure_registries)
    lines += [f"insecure_registries = {json.dumps(plain)}", f"[ingress]\ncidrs = {json.dumps(cidrs)}"]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_fit_cluster_is_told_so(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    file = write(settings_for(cluster, namespace), tmp_path / "settings.toml")
    done = check("--json", ORCHARD_KUBERNETES=file)
    told = json.loads(done.stdout)
    states = {each["name"]: each["state"] for each in told["findings"]}
    assert (done.returncode, told["fit"]) == (0, True), done.stdout + done.stderr
    assert list(states)[:7] == [
        "version", "rights", "admission", "pod-security", "registry", "sandbox", "network-policy"
    ]  # fmt: skip
    assert {states[name] for name in list(states)[:7]} == {"ok"}
    assert states["cgroup"] in ("ok", "absent")
    pods = cluster.get("-n", namespace, "pods")["items"]
    assert not [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")], "the probe is gone"


def test_words_say_what_to_do_and_the_code_that_it_does_not_do(cluster: Cluster, tmp_path: Path) -> None:
    file = write(settings_for(cluster, "nowhere-at-all"), tmp_path / "settings.toml")
    done = check("--no-probe", ORCHARD_KUBERNETES=file)
    assert done.returncode == 8
    assert "→ kubectl create namespace nowhere-at-all" in done.stdout
    assert "sandboxes cannot be made here" in done.stdout


def test_what_was_not_tried_is_not_called_fit(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    file = write(settings_for(cluster, namespace), tmp_path / "settings.toml")
    done = check("--no-probe", "--json", ORCHARD_KUBERNETES=file)
    assert (done.returncode, json.loads(done.stdout)["fit"]) == (7, None), done.stdout + done.stderr


def test_cluster_out_of_reach_is_one_finding(cluster: Cluster, tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    told["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(json.dumps(told))
    done = check("--json", KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert done.returncode == 8
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["name"], finding["state"]) == ("api", "missing")


def test_no_cluster_at_all_is_an_argument_that_is_missing(tmp_path: Path) -> None:
    done = check(HOME=str(tmp_path))
    assert done.returncode == 2
    assert "KUBECONFIG" in done.stderr


async def test_a_server_whose_certificate_nobody_vouches_for_is_told_as_a_wrong_argument(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    told = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    if told["clusters"][0]["cluster"].pop("certificate-authority-data", None) is None:
        pytest.skip("the certificate of this cluster is one that every machine trusts")
    (tmp_path / "kubeconfig").write_text(json.dumps(told))
    client = await Client.connect(replace(settings_for(cluster, namespace), kubeconfig=tmp_path / "kubeconfig"))
    try:
        with pytest.raises(InvalidArgument) as caught:
            await client.get("/version")
        assert caught.value.field == "kubeconfig"
    finally:
        await client.close()


async def test_rights_that_are_missing_are_named(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.write_kubeconfig(tmp_path / "kubeconfig", namespace)
    cluster.kubectl("-n", namespace, "create", "role", "some", "--verb=create,get,list,watch", "--resource=pods")
    cluster.kubectl(
        "-n", namespace, "create", "rolebinding", "some", "--role=some", f"--serviceaccount={namespace}:default"
    )
    told = await found(replace(settings_for(cluster, namespace), kubeconfig=tmp_path / "kubeconfig"))
    assert told["rights"].state == "missing"
    for words in (
        f"delete pods in {namespace}",
        "get secrets/orchard-service-key",
        "list endpointslices",
        "list nodes",
    ):
        assert words in told["rights"].meaning
    assert f"watch pods in {namespace}" not in told["rights"].meaning
    assert told["storage"].state == "unknown", "nodes may not be listed"


async def test_pods_that_may_not_be_made_tell_nothing_of_pod_security(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.write_kubeconfig(tmp_path / "kubeconfig", namespace)
    told = await found(replace(settings_for(cluster, namespace), kubeconfig=tmp_path / "kubeconfig"))
    assert (told["admission"].state, told["pod-security"].state) == ("missing", "unknown")


async def test_rights_that_only_help_are_absent(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.write_kubeconfig(tmp_path / "kubeconfig", namespace)
    cluster.kubectl(
        "-n", namespace, "create", "rolebinding", "a", "--clusterrole=admin", f"--serviceaccount={namespace}:default"
    )
    settings = replace(settings_for(cluster, namespace), api_servers=["192.0.2.1:6443"])
    told = await found(replace(settings, kubeconfig=tmp_path / "kubeconfig"))
    assert told["rights"].state == "absent"
    assert "list nodes" in told["rights"].meaning


async def test_what_admission_refuses_is_told_in_its_words(cluster: Cluster, namespace: str) -> None:
    settings = settings_for(cluster, namespace)
    told = await found(replace(settings, runtime_class="no-such-runtime"))
    assert told["admission"].state == "missing"
    assert "no-such-runtime" in told["admission"].meaning
    with cluster.namespace("restricted") as strict:
        told = await found(replace(settings, namespace=strict))
        assert told["admission"].state == "missing"
        assert "violates PodSecurity" in told["admission"].meaning
        told = await found(replace(settings, namespace=strict, profile="restricted", run_as=1000))
        assert told["admission"].state == "ok"


async def test_unguarded_namespace_is_told(cluster: Cluster) -> None:
    with cluster.namespace("privileged") as open_to_all:
        told = await found(settings_for(cluster, open_to_all))
    assert told["pod-security"].state == "absent"
    assert told["pod-security"].mend
    assert f"namespace {open_to_all}" in told["pod-security"].mend


async def test_daemon_that_is_not_in_its_registry_is_told(cluster: Cluster, namespace: str) -> None:
    settings = settings_for(cluster, namespace)
    told = await found(replace(settings, daemon_image=f"{cluster.registry}/no-such:1"))
    assert told["registry"].state == "missing"
    assert (await found(replace(settings, daemon_image="")))["admission"].state == "missing"


async def test_policies_that_do_not_bite_are_told(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.kubernetes.pod._SEAL_SECONDS", 10.0)  # of patience, which is wasted here
    everything: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}
    about = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"}}
    cluster.apply({**about, "spec": everything}, namespace=namespace)
    told = await found(settings_for(cluster, namespace), probe=True)
    assert told["network-policy"].state == "missing"
    assert "sandbox" not in told
