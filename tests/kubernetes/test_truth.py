"""What befell a sandbox, or kept it from being made, is told as it was: at once, by any replica, after it is gone."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import WITHIN, run

from orchard.core.errors import CreateFailed, NotFound, SandboxGone
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.kubernetes import KubernetesBackend, creating
from orchard.sandbox.kubernetes.identity import name_of
from orchard.sandbox.kubernetes.labels import TENANT
from orchard.sandbox.layout import Image, Node, write_layout
from orchard.sandbox.types import SandboxInfo, SandboxSpec, State

Replicas = Callable[..., KubernetesBackend]
Act = Callable[[Cluster, str, str], None]
_SLOT = "orchard.test/slot"


async def ended(backend: KubernetesBackend, sandbox_id: str, seconds: float = 60) -> SandboxInfo:
    async with asyncio.timeout(seconds):
        while (info := await backend.get(sandbox_id)).state is not State.GONE:  # noqa: ASYNC110 - get is the question
            await asyncio.sleep(0.2)
    return info


async def no_pods(backend: KubernetesBackend, cluster: Cluster, namespace: str, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while (await asyncio.to_thread(cluster.get, "-n", namespace, "pods"))["items"]:
            await backend.reap()
            await asyncio.sleep(0.2)


# -- images


@pytest.mark.parametrize("registry", ["asked", "left to the kubelet"])
@pytest.mark.parametrize(
    ("image", "private", "reason"),
    [("nope/nope", False, "image_not_found"), ("busybox", True, "image_auth"), ("foreign", False, "wrong_arch")],
)
async def test_an_image_that_cannot_run_says_why(
    own_cluster: Cluster, namespace: str, replica: Replicas, image: str, private: bool, reason: str, registry: str
) -> None:
    """With a create time-out of minutes, an answer within the test's own means: not after the time-out."""
    if registry != "asked" and reason == "wrong_arch":
        pytest.skip("sandboxd starts in an image of any architecture, so without the registry nobody can tell")
    backend = replica(**({} if registry == "asked" else {"insecure_registries": []}))
    spec = SandboxSpec(own_cluster.image(image, private=private), ttl=600, create_timeout=600)
    with pytest.raises(CreateFailed) as caught:
        async with asyncio.timeout(120):
            await backend.create(spec, "unable")
    assert caught.value.reason == reason
    assert image in caught.value.message
    assert own_cluster.get("-n", namespace, "pods")["items"] == []


async def test_resolving_an_image_gives_its_digest_or_says_why_not(
    own_cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    backend = replica()
    raw = run("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{own_cluster.image('busybox')}")
    digest = "sha256:" + hashlib.sha256(raw.encode()).hexdigest()
    assert await backend.resolve_image(own_cluster.image("busybox")) == digest
    assert await backend.resolve_image(f"{own_cluster.registry}/busybox@{digest}") == digest
    for image, reason in (
        (own_cluster.image("nope"), "image_not_found"),
        (own_cluster.image("busybox", private=True), "image_auth"),
        (own_cluster.image("foreign"), "wrong_arch"),
        ("127.0.0.1:1/busybox:1", "registry_unreachable"),
    ):
        with pytest.raises(CreateFailed) as caught:
            await backend.resolve_image(image)
        assert caught.value.reason == reason


def slow_image(cluster: Cluster, folder: Path) -> str:
    """Push an image that no node has, of ten seconds of the private registry; return its reference there."""
    noise = random.randbytes(5 << 19)
    layout = write_layout(Image((Node("noise", noise, 0o644),)), folder / "layout")
    name = f"slow-{hashlib.sha256(noise).hexdigest()[:8]}"
    copy = ("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false")
    run(*copy, layout, f"docker://{cluster.image(name)}")
    return cluster.image(name, private=True)


def log_in(cluster: Cluster, namespace: str) -> None:
    """Make the pull secret ``login`` of the private registry."""
    login = {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": cluster.pull_secret}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, **login}, namespace=namespace)


async def test_a_slow_pull_shows_as_pulling_and_is_not_on_the_clock(
    own_cluster: Cluster, namespace: str, replica: Replicas, tmp_path: Path
) -> None:
    """The image is private: the registry and the kubelet both take the pull secret."""
    log_in(own_cluster, namespace)
    backend, other = replica(pull_secrets=["login"]), replica()
    image = await asyncio.to_thread(slow_image, own_cluster, tmp_path)
    await backend.create(SandboxSpec(own_cluster.image("busybox"), ttl=100), "warm")  # the daemon's image is there now
    making = asyncio.ensure_future(backend.create(SandboxSpec(image, ttl=100, create_timeout=8), "slow"))
    seen = set[State]()
    while not making.done():
        seen |= {info.state for info in (await other.list()).items if info.image == image}
        await asyncio.sleep(0.2)
    info = await making
    assert State.PULLING in seen
    assert info.image_digest == await backend.resolve_image(image)
    for each in (await backend.list()).items:
        await backend.delete(each.id, wait=False)


async def test_a_slow_pull_of_one_tenant_holds_up_no_other(
    own_cluster: Cluster, namespace: str, replica: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creating, "_PULL_HOLDS", 1.0)
    monkeypatch.setattr(creating, "_SILENCE", 1.0)  # how often it looks while nothing changes
    log_in(own_cluster, namespace)
    backend, order = replica(pull_secrets=["login"], creates=1), list[str]()

    async def make(image: str, tenant: str) -> None:
        made = await backend.create(SandboxSpec(image, ttl=100, labels={TENANT: tenant}), "key")
        order.append(tenant)
        await backend.delete(made.id, wait=False)

    await make(own_cluster.image("busybox"), "warm")  # the daemon's image is there now
    slow = asyncio.ensure_future(make(await asyncio.to_thread(slow_image, own_cluster, tmp_path), "slow"))
    await asyncio.sleep(0.5)  # it has the only turn
    await make(own_cluster.image("busybox"), "quick")
    await slow
    assert order == ["warm", "quick", "slow"]


# -- ends


@asynccontextmanager
async def witnessed(
    cluster: Cluster, namespace: str, replica: Replicas, sandbox_id: str, reason: str
) -> AsyncIterator[None]:
    """In the block the sandbox meets its end; a replica that watched and one that is started later tell it alike."""
    watching = replica()
    assert (await watching.get(sandbox_id)).state is State.READY
    yield
    info = await ended(watching, sandbox_id)
    assert info.reason == reason, info.detail
    assert info.ended_at is not None
    with pytest.raises(SandboxGone) as caught:
        await watching.endpoint(sandbox_id)
    assert caught.value.reason == reason
    await no_pods(watching, cluster, namespace)
    later = await replica().get(sandbox_id)
    told = (later.state, later.reason, later.detail, later.ended_at, later.labels, later.env)
    assert told == (State.GONE, reason, info.detail, info.ended_at, info.labels, info.env)


def drain(cluster: Cluster, namespace: str, pod: str) -> None:
    """Drain the node of our Pod; of its Pods, ours alone."""
    node = cluster.get("-n", namespace, "pod", pod)["spec"]["nodeName"]
    ours = f"--pod-selector=label.orchard/test={namespace}"
    try:
        cluster.kubectl("drain", node, ours, "--force", "--delete-emptydir-data", WITHIN)
    finally:
        cluster.kubectl("uncordon", node)


def delete(cluster: Cluster, namespace: str, pod: str) -> None:
    cluster.kubectl("-n", namespace, "delete", "pod", pod)


def delete_by_force(cluster: Cluster, namespace: str, pod: str) -> None:
    cluster.kubectl("-n", namespace, "delete", "pod", pod, "--force", "--grace-period=0")


def let_the_deadline_pass(cluster: Cluster, namespace: str, pod: str) -> None:
    """It can only be lowered; the kubelet ends the Pod."""
    patch = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
    cluster.kubectl("-n", namespace, "patch", "pod", pod, "--type=merge", f"--patch={patch}")


def kill_the_daemon(cluster: Cluster, namespace: str, pod: str) -> None:
    """SIGTERM to PID 1 from inside: nobody asked for the end of the Pod."""
    cluster.kubectl("-n", namespace, "exec", pod, "--container=sandbox", "--", "kill", "1")


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (drain, "evicted"), (delete, "deleted"), (delete_by_force, "deleted"), (let_the_deadline_pass, "ttl"),
        (kill_the_daemon, "signal"),
    ],
)  # fmt: skip
async def test_what_ends_a_pod_from_outside_is_told_after_it_is_gone(
    own_cluster: Cluster, namespace: str, replica: Replicas, act: Act, reason: str
) -> None:
    spec = SandboxSpec(own_cluster.image("busybox"), ttl=300, labels={"test": namespace})
    made = await replica().create(spec, "outside")
    async with witnessed(own_cluster, namespace, replica, made.id, reason):
        await asyncio.to_thread(act, own_cluster, namespace, name_of(made.id))


@pytest.mark.parametrize(
    ("act", "reason"), [(kill_the_daemon, "signal"), (drain, "evicted"), (let_the_deadline_pass, "ttl")]
)
async def test_a_container_that_a_webhook_put_beside_it_hides_no_end(
    own_cluster: Cluster, namespace: str, replica: Replicas, act: Act, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on, and with it, by its phase, the Pod."""
    image, made_by_us = own_cluster.image("busybox"), creating.manifest

    def with_another(*given: Any) -> dict[str, Any]:
        pod = made_by_us(*given)
        pod["spec"]["containers"].append({"name": "mesh", "image": image, "command": ["sleep", "1000"]})
        return pod

    monkeypatch.setattr(creating, "manifest", with_another)
    made = await replica().create(SandboxSpec(image, ttl=300, labels={"test": namespace}), "outside")
    async with witnessed(own_cluster, namespace, replica, made.id, reason):
        await asyncio.to_thread(act, own_cluster, namespace, name_of(made.id))


@pytest.fixture
def slot(own_cluster: Cluster, namespace: str) -> Iterator[str]:
    """A resource of which the first node has one, and a priority class of the test's own; yields the class."""
    name, node = f"high-{namespace}", own_cluster.nodes[0]  # others here taint the last
    resource = _SLOT.replace("/", "~1")

    def change(operation: str, **value: str) -> None:
        patch = json.dumps([{"op": operation, "path": f"/status/capacity/{resource}", **value}])
        own_cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", f"--patch={patch}")

    own_cluster.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    )
    change("add", value="1")
    yield name
    change("remove")
    own_cluster.kubectl("delete", "priorityclass", name)


async def test_a_preempted_sandbox_was_evicted(
    own_cluster: Cluster, namespace: str, replica: Replicas, slot: str
) -> None:
    one = {_SLOT: "1"}
    backend = replica(requests={"cpu": "10m", "memory": "16Mi", **one}, limits=one)
    made = await backend.create(SandboxSpec(own_cluster.image("busybox"), ttl=300), "low")
    main = {"name": "main", "image": own_cluster.image("scratch"), "resources": {"limits": one}}
    spec = {"priorityClassName": slot, "terminationGracePeriodSeconds": 0, "containers": [main]}
    async with witnessed(own_cluster, namespace, replica, made.id, "evicted"):
        high = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "high"}, "spec": spec}
        await asyncio.to_thread(own_cluster.apply, high, namespace=namespace)
        info = await ended(backend, made.id)
        assert "Preempt" in (info.detail or "")
        await asyncio.to_thread(own_cluster.kubectl, "-n", namespace, "delete", "pod", "high")


async def fill_memory(box: Sandbox) -> None:
    while True:
        await box.run("for i in 1 2 3 4; do dd if=/dev/zero of=/dev/shm/$i bs=1M count=40; done")


async def test_memory_that_no_command_gives_back_ends_the_sandbox_as_oom(
    own_cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    """A file in memory outlives the command that wrote it, which the kernel picks first."""
    async with Orchard(backend=replica()) as orchard:
        made = await orchard.create(own_cluster.image("busybox"), memory="32MiB", ttl=300)
        async with witnessed(own_cluster, namespace, replica, made.id, "oom"):
            with pytest.raises(SandboxGone) as caught:
                await fill_memory(made)
            assert caught.value.reason == "oom"


async def test_a_memory_bomb_ends_its_command_and_not_the_sandbox(
    own_cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    orchard = Orchard(backend=replica())
    async with orchard, orchard.sandbox(own_cluster.image("busybox"), memory="32MiB") as box:
        result = await box.run("tail /dev/zero")
        assert (result.oom_killed, result.signal) == (True, "KILL")
        assert (await box.run("echo on")).text == "on\n"


async def test_too_much_written_ends_the_sandbox_as_evicted(
    own_cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    backend = replica(spool_bytes=1 << 20)
    async with Orchard(backend=backend) as orchard:
        made = await orchard.create(own_cluster.image("busybox"), disk="2MiB", ttl=300)
        async with witnessed(own_cluster, namespace, replica, made.id, "evicted"):
            with pytest.raises(SandboxGone) as caught:
                await made.run("dd if=/dev/zero of=/big bs=1M count=64; sleep 120")
            assert "ephemeral" in caught.value.message


async def test_a_node_that_falls_silent_loses_its_sandboxes_and_comes_back(
    cluster_to_break: Cluster, namespace: str, replica: Replicas
) -> None:
    """Without its kubelet commands go on; then its cable is pulled, too."""
    cluster, node = cluster_to_break, cluster_to_break.nodes[-1]
    backend = replica(node_lost_after=1, node_selector={"kubernetes.io/hostname": node})
    made = await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), "lost")
    async with witnessed(cluster, namespace, replica, made.id, "node_lost"), Orchard(backend=backend) as orchard:
        cluster.stop(f"{node}-kubelet")
        assert (await (await orchard.attach(made.id)).run("echo here")).text == "here\n"
        with cluster.unplugged(node):
            await ended(backend, made.id, 90)
            assert is_ready(cluster, node) == "Unknown"
            cluster.start(f"{node}-kubelet")
        assert is_ready(cluster, node) == "True"


def is_ready(cluster: Cluster, node: str) -> str:
    told = {each["type"]: each["status"] for each in cluster.get("node", node)["status"]["conditions"]}
    return told["Ready"]


async def test_a_copy_of_a_pod_is_never_taken_for_the_sandbox(
    own_cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    """The copy has name, id, proof and token of the first one, and nothing of its state."""
    backend = replica()
    spec = SandboxSpec(own_cluster.image("busybox"), ttl=300)
    made = await backend.create(spec, "copied")
    await asyncio.sleep(6)  # a copy made at once could be told by nobody but those who watched
    name = name_of(made.id)
    pod = await asyncio.to_thread(own_cluster.get, "-n", namespace, "pod", name)
    await asyncio.to_thread(delete_by_force, own_cluster, namespace, name)
    info = await ended(backend, made.id)
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        del pod["metadata"][field]
    del pod["status"], pod["spec"]["nodeName"]
    await asyncio.to_thread(own_cluster.apply, pod, namespace=namespace)
    await asyncio.to_thread(
        own_cluster.kubectl, "-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", WITHIN
    )
    for each in (backend, replica()):
        assert (await each.get(made.id)).reason == "deleted"
        with pytest.raises(SandboxGone):
            await each.endpoint(made.id)
        assert (await each.create(spec, "copied")).state is State.GONE
    note = f"orchard/created={info.created_at - timedelta(hours=2)}"  # as of one restored when all is forgotten
    await asyncio.to_thread(own_cluster.kubectl, "-n", namespace, "annotate", "pod", name, "--overwrite", note)
    await asyncio.to_thread(own_cluster.kubectl, "-n", namespace, "delete", "event", made.id)
    late = replica()
    assert (await late.get(made.id)).reason == "restarted"
    with pytest.raises(SandboxGone):
        await late.endpoint(made.id)
    await backend.delete(made.id)


async def test_a_forged_tombstone_is_not_believed(own_cluster: Cluster, namespace: str, replica: Replicas) -> None:
    backend = replica()
    made = await backend.create(SandboxSpec(own_cluster.image("busybox"), ttl=300), "true")
    await backend.delete(made.id)
    event = await asyncio.to_thread(own_cluster.get, "-n", namespace, "event", made.id)
    record = event["metadata"]["annotations"]["orchard/tombstone"]
    event["metadata"]["annotations"]["orchard/tombstone"] = record.replace('"deleted"', '"oom"')
    await asyncio.to_thread(own_cluster.apply, event, namespace=namespace)
    with pytest.raises(NotFound):
        await replica().get(made.id)
    assert (await backend.get(made.id)).reason == "deleted"
