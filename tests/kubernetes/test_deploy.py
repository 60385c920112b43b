"""The chart on the cluster: it serves, keeps its keys, asks for nothing it is not granted, and goes without a trace."""

import asyncio
import base64
import json
import re
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deploy.images import build as images
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import WITHIN, wait_until
from tests.kubernetes.daemon import settings_for
from tests.kubernetes.deployment import RELEASE, Deployment, deployed
from tests.support.waiting import until

from orchard import Orchard
from orchard.core.errors import MachineUnfit, NotFound
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.kubernetes.credentials import Access
from orchard.sandbox.kubernetes.identity import name_of
from orchard.sandbox.kubernetes.policies import OPEN
from orchard.sandbox.kubernetes.rights import Right, reaper_rights, rights
from orchard.sandbox.types import SandboxSpec

pytestmark = pytest.mark.timeout(900)  # the images may have to be built first
_TTL = 10.0  # seconds of a sandbox whose owner leaves it, and whose end is waited for
SERVICE = "app.kubernetes.io/component=service"
LOGIN = "registry-login"
"""Credentials that the settings name and nobody has made: sandboxes of public images do without."""


def _told(cluster: Cluster) -> dict[str, Any]:
    return {"pull_secrets": [LOGIN], "push_secrets": ["push"], "commit_repository": f"{cluster.registry}/made"}


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two replicas, of images built from this checkout."""
    with deployed(cluster, tmp_path_factory.mktemp("release"), settings=_told(cluster)) as made:
        yield made


@pytest.fixture
async def orchard(release: Deployment) -> AsyncIterator[Orchard]:
    """A client of one of the replicas."""
    async with Orchard(release.urls()[0], api_key=release.api_key) as client:
        yield client


def test_replicas_are_ready_where_only_restricted_pods_may_be(release: Deployment) -> None:
    pods = release.pods()
    assert len(pods) == 2
    ready = [each for pod in pods for each in pod["status"]["conditions"] if each["type"] == "Ready"]
    assert [each["status"] for each in ready] == ["True", "True"]
    assert not [pod for pod in pods if pod["status"]["containerStatuses"][0]["restartCount"]]
    labels = release.cluster.get("namespace", release.namespace)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


async def test_any_replica_answers_for_a_sandbox(release: Deployment, orchard: Orchard) -> None:
    first, second = release.urls()
    async with orchard.sandbox(release.cluster.image("busybox")) as box:
        async with Orchard(second, api_key=release.api_key) as other:
            result = await (await other.attach(box.id)).run("id -u; hostname")
        assert result.check().stdout.split() == [b"0", b"sandbox"]
        pods = release.cluster.get("-n", release.sandboxes, "pods", "-l", "orchard/sandbox=1")["items"]
        assert box.id in [pod["metadata"]["annotations"]["orchard/id"] for pod in pods]
    assert first != second


def test_command_line_works_through_the_name_of_the_service(release: Deployment) -> None:
    said = release.inside("orchard", "sandbox", "run", release.cluster.image("busybox"), "--", "echo", "hello")
    assert said.strip() == "hello"


def test_check_in_the_cluster_finds_it_fit(release: Deployment) -> None:
    told = json.loads(release.inside("orchard", "deploy", "check", "--json"))
    found = {each["name"]: each["state"] for each in told["findings"]}
    assert told["fit"]
    names = ("version", "rights", "admission", "pod-security", "registry", "sandbox", "network-policy", "image-volume")
    assert {name: found.get(name) for name in names} == dict.fromkeys(names, "ok")


@contextmanager
def without_replicas(release: Deployment) -> Iterator[None]:
    """In the block no replica is there; afterwards both are again."""
    cluster, deployment = release.cluster, ("-n", release.namespace, "scale", f"deployment/{RELEASE}")
    cluster.kubectl(*deployment, "--replicas=0")
    try:
        cluster.kubectl("-n", release.namespace, "wait", "--for=delete", "pod", "-l", SERVICE, WITHIN)
        yield
    finally:
        cluster.kubectl(*deployment, "--replicas=2")
        cluster.kubectl("-n", release.namespace, "rollout", "status", f"deployment/{RELEASE}", WITHIN)


async def left(release: Deployment) -> str:
    """Make a sandbox that nobody looks after; return its id once it has ended by its lease."""
    cluster = release.cluster
    owner = KubernetesBackend(settings_for(cluster, release.sandboxes))
    try:
        box = await owner.create(SandboxSpec(cluster.image("busybox"), ttl=_TTL), "left")
    finally:
        await owner.close()

    def ended() -> bool:
        pod = cluster.get("-n", release.sandboxes, "pod", name_of(box.id))
        return pod["status"]["phase"] in ("Succeeded", "Failed")

    await asyncio.to_thread(wait_until, ended, "its own end")
    return box.id


async def test_reaper_removes_what_has_ended_with_every_replica_dead(release: Deployment) -> None:
    cluster, where = release.cluster, ("-n", release.namespace)
    with without_replicas(release):
        sandbox_id = await left(release)
        cluster.kubectl(*where, "create", "job", f"--from=cronjob/{RELEASE}-reap", "once")
        cluster.kubectl(*where, "wait", "job/once", "--for=condition=Complete", WITHIN)
        assert sandbox_id in cluster.kubectl(*where, "logs", "job/once")
        gone = ("wait", "--for=delete", f"pod/{name_of(sandbox_id)}")
        cluster.kubectl("-n", release.sandboxes, *gone, WITHIN)


def test_output_goes_on_while_every_replica_is_replaced(release: Deployment) -> None:
    """Through the Service: each stream ends early, and its client comes back for the rest through a new replica."""
    cluster, where = release.cluster, ("-n", release.namespace)
    before = {pod["metadata"]["name"] for pod in release.pods()}
    count = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 1; done"
    pod = release.client("orchard", "sandbox", "run", cluster.image("busybox"), "--", "sh", "-c", count)
    cluster.apply(pod, namespace=release.namespace)
    cluster.kubectl(*where, "wait", "pod/client", "--for=condition=Ready", WITHIN)
    wait_until(lambda: "line 3" in cluster.kubectl(*where, "logs", "client"), "the first lines")
    cluster.kubectl(*where, "rollout", "restart", f"deployment/{RELEASE}")
    cluster.kubectl(*where, "rollout", "status", f"deployment/{RELEASE}", WITHIN)
    wait_until(lambda: "terminated" in _client_state(release), "the end of the client")
    said = cluster.kubectl(*where, "logs", "client").splitlines()  # with its stderr: a renewal of its lease may wait
    assert _client_state(release)["terminated"]["exitCode"] == 0, said
    assert [line for line in said if not line.startswith("the lease of sandbox")] == [f"line {n}" for n in range(30)]
    wait_until(lambda: not before & {pod["metadata"]["name"] for pod in release.pods()}, "the old replicas to go")


def _client_state(release: Deployment) -> dict[str, Any]:
    return release.get("pod", "client")["status"]["containerStatuses"][0]["state"]


def test_nobody_is_served_without_a_key(release: Deployment) -> None:
    with pytest.raises(MachineUnfit, match="the API key is not known here"):
        release.inside("env", "ORCHARD_API_KEY=orchard-wrong", "orchard", "sandbox", "ls")


class Recorder:
    """Notes what is asked of the API server, as rights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: set[Right] = set()
        self.refused: list[str] = []
        send = Access.request

        async def noting(access: Access, method: str, path: str, **given: Any) -> Any:
            answer = await send(access, method, path, **given)
            self._note(method, path, given.get("params") or {}, answer.status)
            if answer.status == 403:
                self.refused.append(f"{method} {path}: {(await answer.read()).decode()}")
            return answer

        monkeypatch.setattr(Access, "request", noting)

    def _note(self, method: str, path: str, params: dict[str, str], status: int) -> None:
        match = re.fullmatch(
            r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<place>[^/]+))?/(?P<kind>[^/]+)(?:/(?P<name>[^/]+))?",
            path,
        )
        assert match, path
        name = match["name"]
        collection = "watch" if "watch" in params else "list"
        verb = {"GET": "get" if name else collection, "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
        kept = name if match["kind"] in ("secrets", "networkpolicies") else None
        self.used.add(Right(verb, match["kind"], match["group"] or "", match["place"], kept, required=False))
        if method == "PATCH" and status == 201:  # server-side apply of what was not there
            self.used.add(Right("create", match["kind"], match["group"] or "", match["place"], required=False))


async def test_service_account_can_do_all_that_is_done_and_nothing_more(
    release: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driven through all it does with the very rights of the chart, nothing is refused and no right stays unused."""
    cluster, account = release.cluster, tmp_path / "kubeconfig"
    cluster.write_kubeconfig(account, release.namespace, RELEASE)
    cluster.kubectl("-n", release.sandboxes, "delete", "networkpolicy", OPEN, "--ignore-not-found")
    recorder = Recorder(monkeypatch)
    settings = replace(settings_for(cluster, release.sandboxes, **_told(cluster)), kubeconfig=account)
    for step in (_live, _find_again):
        backend = KubernetesBackend(settings)
        try:
            await step(backend, cluster)
        finally:
            await backend.close()
    granted = {Right(**{**vars(right), "required": False}) for right in rights(release.sandboxes, settings)}
    assert not recorder.refused
    assert recorder.used == granted


async def test_the_reapers_account_can_do_all_that_is_done_and_nothing_more(
    release: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, account = release.cluster, tmp_path / "kubeconfig"
    with without_replicas(release):
        sandbox_id = await left(release)  # and nobody but the reaper tells of its end: a replica writes the same event
        cluster.write_kubeconfig(account, release.namespace, f"{RELEASE}-reap")
        recorder = Recorder(monkeypatch)
        settings = replace(settings_for(cluster, release.sandboxes), kubeconfig=account)
        assert sandbox_id in [each.id for each in await KubernetesBackend(settings).reap()]
    assert not recorder.refused
    granted = {replace(right, required=False) for right in reaper_rights(release.sandboxes, settings)}
    assert granted - recorder.used <= {Right("get", "events", namespace=release.sandboxes, required=False)}
    assert recorder.used <= granted


_ENDED: list[str] = []


async def _live(backend: KubernetesBackend, cluster: Cluster) -> None:
    spec = SandboxSpec(cluster.image("busybox"), network="open", ttl=60)
    first, again = await asyncio.gather(backend.create(spec, "key"), backend.create(spec, "key"))
    assert first.id == again.id
    assert [info.id for info in (await backend.list()).items] == [first.id]
    await backend.delete(first.id)
    sealed = await backend.create(SandboxSpec(cluster.image("busybox"), ttl=60), "sealed")
    await backend.commit(sealed.id, "made")
    await backend.delete(sealed.id)
    await backend.reap()
    _ENDED[:] = [first.id, sealed.id]


async def _find_again(backend: KubernetesBackend, cluster: Cluster) -> None:
    assert [(await backend.get(sandbox_id)).reason for sandbox_id in _ENDED] == ["deleted", "deleted"]
    with pytest.raises(NotFound):
        await backend.get("sb-nobody-knows")


async def test_rights_without_use_are_refused(release: Deployment) -> None:
    account = f"--as=system:serviceaccount:{release.namespace}:{RELEASE}"
    for asked in (
        ("list", "secrets", "-n", release.sandboxes), ("get", "secrets", "-n", release.namespace),
        ("create", "pods", "--subresource=exec", "-n", release.sandboxes), ("create", "pods", "-n", release.namespace),
        ("delete", "networkpolicies", "-n", release.sandboxes), ("get", "configmaps", "-n", "kube-system"),
    ):  # fmt: skip
        with pytest.raises(MachineUnfit, match="ended with 1"):  # "no"
            release.cluster.kubectl("auth", "can-i", *asked, account)


async def test_upgrade_keeps_keys_and_sandboxes_and_uninstall_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    given: dict[str, Any] = {"replicas": 1, "sandboxes": {"profile": "restricted"}}
    with deployed(cluster, tmp_path, **given) as release:
        async with Orchard(release.urls()[0], api_key=release.api_key) as client:
            box = await client.create(cluster.image("nonroot"), ttl=600)
        before = release.secret(f"{RELEASE}-keys"), release.secret("orchard-service-key", release.sandboxes)
        assert len(before[1]["key"]) == 32
        release.helm("upgrade", tmp_path, **given, podAnnotations={"orchard.test/round": "2"})
        assert (release.secret(f"{RELEASE}-keys"), release.secret("orchard-service-key", release.sandboxes)) == before
        url = next(
            f"http://{pod['status']['podIP']}:8420" for pod in release.pods()
            if pod["metadata"]["annotations"].get("orchard.test/round") == "2"
        )  # fmt: skip
        async with Orchard(url, api_key=release.api_key) as client:
            assert (await (await client.attach(box.id)).run("id -u")).check().stdout == b"1000\n"
        again = {"podAnnotations": {"orchard.test/round": "2"}, "keys": {"quota": 0, "rate": 7}}
        release.helm("upgrade", tmp_path, **given, **again)
        told = release.secret(f"{RELEASE}-keys")
        was, now = (tomllib.loads(each["keys.toml"].decode())["keys"] for each in (before[0], told))
        assert told["api-key"] == before[0]["api-key"]
        assert now == [{**was[0], "quota": 0, "rate": 7}]
        edited = told["keys.toml"].decode().replace('"default"', '"team-a"')  # both the name and the tenant
        patch = json.dumps({"data": {"keys.toml": base64.b64encode(edited.encode()).decode()}})
        cluster.kubectl("-n", release.namespace, "patch", "secret", f"{RELEASE}-keys", "--type=merge", "-p", patch)
        release.helm("upgrade", tmp_path, **given, podAnnotations=again["podAnnotations"], keys={"quota": 50})
        left = tomllib.loads(release.secret(f"{RELEASE}-keys")["keys.toml"].decode())["keys"]
        assert left == [{**now[0], "name": "team-a", "tenant": "team-a", "quota": 50}]
        release.uninstall()
        cluster.kubectl("wait", "--for=delete", f"namespace/{release.sandboxes}", WITHIN)
        wide = json.loads(
            cluster.kubectl("get", "clusterroles,clusterrolebindings,roles,rolebindings", "-A", "-o", "json")
        )
        assert not [each for each in wide["items"] if release.namespace in json.dumps(each["metadata"])]
        await until(lambda: _left(cluster, release.namespace) == [])  # Helm leaves the Pods to the garbage collector


def _left(cluster: Cluster, namespace: str) -> list[str]:
    left = json.loads(cluster.kubectl("-n", namespace, "get", "all,secrets,configmaps", "-o", "json"))
    names = [f"{each['kind']}/{each['metadata']['name']}" for each in left["items"]]
    return [name for name in names if name != "ConfigMap/kube-root-ca.crt"]


def test_image_is_the_same_made_twice(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        images._orchard(tmp_path / name / "layer.tar")
    first, second = ((tmp_path / name / "layer.tar").read_bytes() for name in ("first", "second"))
    assert len(first) > 1 << 20
    assert first == second
