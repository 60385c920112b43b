"""The cluster of the lane itself: what every other test here stands on."""

import json
import ssl
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kubernetes.cluster import lifecycle, nodes
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.place import (
    API,
    INTERNET,
    METADATA,
    NODES,
    PKI,
    PRIVATE_PASSWORD,
    PRIVATE_SPEED,
    PRIVATE_USER,
    RUN,
)
from tests.kubernetes.cluster.processes import CGROUPS, PERIOD, WITHIN, kubectl, run, unified, wait_until
from tests.kubernetes.cluster.simulated import LABEL

from orchard.core.errors import MachineUnfit
from orchard.sandbox.layout import ARCHITECTURE

_SERVER = ["httpd", "-f", "-p", "8000", "-h", "/etc"]
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_OPEN = [{}]
"""Rules of a NetworkPolicy that let everything through."""


def pod(name: str, image: str, command: list[str] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": image, **({"command": command} if command else {})}
    spec = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"name": name}}, "spec": spec}


def ready(cluster: Cluster, namespace: str, *pods: dict[str, Any]) -> dict[str, str]:
    """Create pods, wait until they are Ready, and return each one's address."""
    cluster.apply(*pods, namespace=namespace)
    names = [item["metadata"]["name"] for item in pods]
    waiting = [f"pod/{name}" for name in names]
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", *waiting, WITHIN)
    return {name: cluster.get("-n", namespace, "pod", name)["status"]["podIP"] for name in names}


def inside(cluster: Cluster, namespace: str, name: str, *command: str) -> str:
    return cluster.kubectl("-n", namespace, "exec", name, "--", *command)


def fetch(cluster: Cluster, namespace: str, name: str, host: str, port: int = 8000) -> str:
    """Return what the server says to a pod that asks for its /passwd; empty where it cannot be reached.

    Debian's busybox has a wget that crashes.
    """
    ask = 'printf \'GET /passwd HTTP/1.0\\r\\n\\r\\n\' | nc -w 2 "$0" "$1" || true'
    return inside(cluster, namespace, name, "sh", "-c", ask, host, str(port))


@pytest.mark.parametrize(("told", "plain"), [("registry.example:5000", False), ("http://registry.example:5000", True)])
def test_another_cluster_is_named_with_a_registry_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, plain: bool
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("ORCHARD_TEST_REGISTRY", raising=False)
    with pytest.raises(MachineUnfit, match="ORCHARD_TEST_REGISTRY"):
        Cluster().up()
    monkeypatch.setenv("ORCHARD_TEST_REGISTRY", told)
    theirs = Cluster()
    assert (theirs.ours, theirs.plain, theirs.registry) == (False, plain, "registry.example:5000")


@pytest.mark.parametrize(
    ("told", "verb", "asked"),
    [
        ("net/http: TLS handshake timeout", "create", 2),
        ("the server was unable to return a response in the time allotted", "get", 2),
        ("the server was unable to return a response in the time allotted", "create", 1),
        ("connection refused", "get", 1),
    ],
)
def test_an_api_server_that_has_no_time_is_asked_again(tmp_path: Path, told: str, verb: str, asked: int) -> None:
    """Not where it may have done what cannot be done twice; nor one that does not run: tests look for that."""
    program = tmp_path / "kubectl"
    program.write_text(
        f"#!/bin/sh\ncd {tmp_path}\necho >>asks\n[ $(wc -l <asks) = 2 ] || {{ echo {told} >&2; exit 1; }}\n"
    )
    program.chmod(0o700)
    with nullcontext() if asked > 1 else pytest.raises(MachineUnfit, match=told):
        kubectl(tmp_path, tmp_path / "config", verb, "pods")
    assert len((tmp_path / "asks").read_text()) == asked


def test_what_is_to_be_gone_afterwards_is_there_before(own_cluster: Cluster) -> None:
    """Of each kind: a mount of a Pod's, its shim, a node's cgroup, its cable, its network namespace, the folder."""
    there = lifecycle.left()
    for kind in (f"{RUN}/node1/", "a shim of node1", "/sys/fs/cgroup/", "/sys/class/net/", "/run/netns/"):
        assert [each for each in there if each.startswith(kind)], kind
    assert there[-1] == str(RUN)


def test_the_kernel_is_set_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet makes the whole machine restart at an oops; that goes with it."""
    monkeypatch.setattr(nodes, "_KEPT", tmp_path / "kept")
    monkeypatch.setattr(nodes, "_KERNEL", tmp_path)
    nodes.restore_kernel()  # of a cluster that never was
    for number, name in enumerate(nodes._TUNED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{number}\n")
        assert (Path("/proc/sys") / name).exists()
    nodes.keep_kernel()
    (tmp_path / "kernel/panic_on_oops").write_text("1\n")
    nodes.restore_kernel()
    assert [(tmp_path / name).read_text() for name in nodes._TUNED] == [f"{n}\n" for n in range(len(nodes._TUNED))]


def test_nodes_are_ready(cluster: Cluster) -> None:
    states = {
        node["metadata"]["name"]: condition["status"]
        for node in cluster.get("nodes")["items"]
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready" and LABEL not in node["metadata"]["labels"]
    }
    assert states == dict.fromkeys(cluster.nodes, "True")
    assert len(states) >= 2


@pytest.mark.parametrize("image", ["busybox", "nonroot", "debian"])
def test_image_of_the_registry_runs_on_each_node(cluster: Cluster, namespace: str, image: str) -> None:
    pods = [
        pod(f"on-{node}", cluster.image(image), ["sleep", "600"], nodeSelector={"kubernetes.io/hostname": node})
        for node in cluster.nodes
    ]
    for name in ready(cluster, namespace, *pods):
        assert inside(cluster, namespace, name, "id", "-u").strip() == {"nonroot": "1000"}.get(image, "0")


def test_static_binary_runs_on_scratch(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod("only", cluster.image("scratch"), ["/app", "hello"], restartPolicy="Never"), namespace=namespace)
    cluster.kubectl("-n", namespace, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/only", WITHIN)
    assert cluster.kubectl("-n", namespace, "logs", "only") == "hello\n"


def test_image_of_another_architecture_says_so(cluster: Cluster) -> None:
    verify = f"--tls-verify={str(not cluster.plain).lower()}"
    told = json.loads(run("skopeo", "inspect", "--config", verify, f"docker://{cluster.image('foreign')}"))
    assert told["architecture"] != ARCHITECTURE


def test_image_volume_feeds_an_image_that_has_nothing(cluster: Cluster, namespace: str) -> None:
    box = pod("fed", cluster.image("scratch"), ["/tools/bin/busybox", "sleep", "600"])
    box["spec"]["volumes"] = [{"name": "tools", "image": {"reference": cluster.image("busybox")}}]
    box["spec"]["containers"][0]["volumeMounts"] = [{"name": "tools", "mountPath": "/tools"}]
    ready(cluster, namespace, box)
    assert "app" in inside(cluster, namespace, "fed", "/tools/bin/busybox", "ls", "/").split()


def test_names_of_services_resolve_and_answer_across_nodes(cluster: Cluster, namespace: str) -> None:
    first, last = cluster.nodes[0], cluster.nodes[-1]
    server = pod("server", cluster.image("busybox"), _SERVER, nodeSelector={"kubernetes.io/hostname": last})
    client = pod("client", cluster.image("busybox"), ["sleep", "600"], nodeSelector={"kubernetes.io/hostname": first})
    ports = {"selector": {"name": "server"}, "ports": [{"port": 80, "targetPort": 8000}]}
    ready(cluster, namespace, server, client)
    cluster.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": ports}, namespace=namespace
    )
    name = f"web.{namespace}.svc.cluster.local"
    wait_until(lambda: "root:x:0" in fetch(cluster, namespace, "client", name, 80), f"an answer of {name}")


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_network_policy_bites_and_lets_go(cluster: Cluster, namespace: str, direction: str) -> None:
    server = pod("server", cluster.image("busybox"), _SERVER)
    client = pod("client", cluster.image("busybox"), ["sleep", "600"])
    address = ready(cluster, namespace, server, client)["server"]

    def answered() -> bool:
        return "root:x:0" in fetch(cluster, namespace, "client", address)

    wait_until(answered, "the client to reach the server without a policy")
    who = {"Ingress": "server", "Egress": "client"}[direction]
    spec: dict[str, Any] = {"podSelector": {"matchLabels": {"name": who}}, "policyTypes": [direction]}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": spec}
    cluster.apply(policy, namespace=namespace)
    wait_until(lambda: not answered(), f"{direction} to be denied")
    cluster.apply({**policy, "spec": {**spec, direction.lower(): _OPEN}}, namespace=namespace)
    wait_until(answered, f"{direction} to be allowed again")


def test_pod_reaches_what_a_policy_is_to_forbid(own_cluster: Cluster, namespace: str) -> None:
    ready(own_cluster, namespace, pod("client", own_cluster.image("busybox"), ["sleep", "600"]))
    for address in (INTERNET, METADATA):
        assert "outside" in fetch(own_cluster, namespace, "client", address, 80)


def test_private_registry_wants_its_password(own_cluster: Cluster, namespace: str) -> None:
    cluster = own_cluster
    reference = cluster.image("scratch", private=True)
    secret = {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": cluster.pull_secret}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, **secret}, namespace=namespace)
    ready(cluster, namespace, pod("with", reference, imagePullSecrets=[{"name": "login"}]))
    always = {"name": "main", "image": reference, "imagePullPolicy": "Always"}
    cluster.apply(pod("without", reference, containers=[always]), namespace=namespace)
    reason = "{.status.containerStatuses[0].state.waiting.reason}"
    refused = {"ErrImagePull", "ImagePullBackOff"}
    wait_until(
        lambda: cluster.kubectl("-n", namespace, "get", "pod", "without", "-o", f"jsonpath={reason}") in refused,
        "a refused pull",
    )


def test_private_registry_is_slow_enough_to_be_seen_pulling(own_cluster: Cluster, namespace: str) -> None:
    cluster = own_cluster
    connection = f"http://{cluster.private_registry}/v2/debian"
    with httpx.Client(auth=(PRIVATE_USER, PRIVATE_PASSWORD)) as client:
        manifest = client.get(f"{connection}/manifests/1", headers={"Accept": _MANIFEST}).json()
        layer = manifest["layers"][0]
        assert layer["size"] > 60 * PRIVATE_SPEED  # a minute
        started = time.monotonic()
        with client.stream("GET", f"{connection}/blobs/{layer['digest']}") as stream:
            taken = next(stream.iter_raw(2 * PRIVATE_SPEED))
    assert len(taken) / (time.monotonic() - started) <= 1.5 * PRIVATE_SPEED


def test_helm_installs_a_chart(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: trial, version: 1.0.0}")
    named = "{apiVersion: v1, kind: ConfigMap, metadata: {name: {{ .Release.Name }}}, data: {word: {{ .Values.word }}}}"
    (tmp_path / "templates" / "map.yaml").write_text(named)
    cluster.helm("-n", namespace, "install", "first", tmp_path, "--set", "word=told")
    assert cluster.get("-n", namespace, "configmap", "first")["data"] == {"word": "told"}


def test_pod_security_refuses_what_is_privileged(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(MachineUnfit, match="violates PodSecurity"):
        cluster.apply(pod("host", cluster.image("scratch"), hostNetwork=True), namespace=namespace)


def test_service_account_is_refused_by_priority_and_fairness(own_cluster: Cluster, namespace: str) -> None:
    bearer = {"Authorization": f"Bearer {own_cluster.token(namespace)}"}
    with httpx.Client(verify=ssl.create_default_context(cafile=PKI / "ca.crt"), headers=bearer, base_url=API) as client:
        assert client.get("/version").status_code == 200
        with own_cluster.refusing(namespace):
            refused = client.get(f"/api/v1/namespaces/{namespace}/pods")
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            assert own_cluster.get("-n", namespace, "pods")["items"] == []
        wait_until(lambda: client.get("/version").status_code == 200, "an answer again")


def test_stopped_part_comes_back_and_keeps_its_state(cluster_to_break: Cluster, namespace: str) -> None:
    cluster = cluster_to_break
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}, namespace=namespace)
    with cluster.stopped("apiserver", grace=0), pytest.raises(MachineUnfit):
        cluster.kubectl("version")
    assert cluster.get("-n", namespace, "configmap", "kept")["metadata"]["name"] == "kept"


def test_simulated_nodes_take_pods_in_name_only(cluster_to_break: Cluster, namespace: str) -> None:
    cluster = cluster_to_break
    with cluster.simulated(2) as names:
        there = {"nodeSelector": {LABEL: "true"}, "tolerations": [{"key": LABEL, "operator": "Exists"}]}
        pods = [pod(f"shadow-{number}", cluster.image("scratch"), **there) for number in range(20)]
        ready(cluster, namespace, *pods)
        homes = {item["spec"]["nodeName"] for item in cluster.get("-n", namespace, "pods")["items"]}
        assert homes <= set(names)
        cluster.kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0")


def test_frozen_store_stops_writes_and_lets_them_go_on(cluster_to_break: Cluster, namespace: str) -> None:
    with cluster_to_break.paused("etcd"), pytest.raises(MachineUnfit):
        cluster_to_break.kubectl("-n", namespace, "create", "configmap", "late", "--request-timeout=2s")
    cluster_to_break.wait_for_api()
    cluster_to_break.kubectl("-n", namespace, "create", "configmap", "after")


def test_a_firewall_and_all_it_starts_have_a_small_share_of_a_processor(own_cluster: Cluster) -> None:
    for node in NODES:
        part = own_cluster.part(f"{node.name}-kube-router")
        process = part.running()
        assert process
        group = f"{node.cgroup}/{part.name}"
        assert f":/{group}\n" in Path(f"/proc/{process.pid}/cgroup").read_text()
        told = CGROUPS / group / "cpu.max" if unified() else CGROUPS / "cpu" / group / "cpu.cfs_quota_us"
        assert int(told.read_text().split()[0]) == round(part.share * PERIOD) > 0
