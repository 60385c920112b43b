"""The backend on a real cluster: make, find, drive, end; by one replica or by another."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import PATIENCE, WITHIN
from tests.kubernetes.daemon import gone, pods, settings_for
from tests.kubernetes.rules import WORDS, refused
from tests.support.waiting import until

from orchard.core.errors import Conflict, CreateFailed, NotFound, SandboxGone, Unavailable
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.kubernetes.daemons import Daemons
from orchard.sandbox.kubernetes.deaths import UNDONE_GRACE
from orchard.sandbox.kubernetes.identity import name_of, pod_name
from orchard.sandbox.kubernetes.tombstones import has_run
from orchard.sandbox.types import SandboxSpec, State
from orchard.service.metrics import Metrics

Replicas = Callable[..., KubernetesBackend]
_GRACE = "deletionGracePeriodSeconds"


@pytest.mark.parametrize("injection", ["init", "image-volume"])
async def test_a_command_runs_in_a_pod_and_nothing_is_left(
    cluster: Cluster, namespace: str, replica: Replicas, injection: str
) -> None:
    backend = replica(injection=injection)
    async with Orchard(backend=backend) as orchard:
        async with orchard.sandbox(cluster.image("busybox"), env={"A": "$(HOME) $$ é"}, labels={"a.b/c": "d"}) as box:
            result = await box.run('echo "$A"; echo x >&2; exit 7')
            assert (result.text, result.error_text, result.exit_code) == ("$(HOME) $$ é\n", "x\n", 7)
            info = await orchard.get(box.id)
            assert (info.state, info.labels, info.backend) == (State.READY, {"a.b/c": "d"}, "kubernetes")
            assert info.expires_at is not None
            seen = await box.run("env; cat /proc/mounts; ls /var/run/secrets 2>&1")
            assert "KUBERNETES" not in seen.text
            assert "serviceaccount" not in seen.text
        assert pods(cluster, namespace) == []
        with pytest.raises(SandboxGone) as caught:
            await orchard.attach(box.id)
        assert caught.value.reason == "deleted"


async def test_the_same_key_is_the_same_sandbox_on_every_replica(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    first, second = replica(), replica()
    spec = SandboxSpec(cluster.image("busybox"), ttl=300)
    made = await asyncio.gather(*(backend.create(spec, "one") for backend in (first, second, first, second)))
    assert len({info.id for info in made}) == 1
    assert len(pods(cluster, namespace)) == 1
    other = SandboxSpec(cluster.image("busybox"), ttl=301)
    for backend in (first, second):
        with pytest.raises(Conflict):
            await backend.create(other, "one")
    assert (await second.get(made[0].id)).state is State.READY
    await second.delete(made[0].id)
    assert (await second.get(made[0].id)).reason == "deleted"


async def test_a_sandbox_that_one_replica_does_not_reach_is_not_ended_under_the_others(
    cluster: Cluster, namespace: str, replica: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replica(), replica()
    spec = SandboxSpec(cluster.image("busybox"), ttl=300)
    made = await first.create(spec, "kept")
    ready = ("wait", "--for=condition=Ready", f"pod/{name_of(made.id)}", WITHIN)
    await asyncio.to_thread(cluster.kubectl, "-n", namespace, *ready)
    live = await second.live()
    await until(lambda: has_run(live.cache.known(name_of(made.id)) or {}))

    async def unreached(*_: object) -> None:
        raise CreateFailed("it was not ready in 300 s", reason="start_timeout")

    monkeypatch.setattr(live.maker, "_greet", unreached)  # as with a broken line to the Pods
    with pytest.raises(Unavailable):
        await second.create(spec, "kept")
    assert (await first.create(spec, "kept")).id == made.id
    async with Orchard(backend=first) as orchard:
        assert (await (await orchard.attach(made.id)).run("echo kept")).text == "kept\n"
        await orchard.delete(made.id)


async def test_a_pod_made_anew_under_an_old_key_is_another_sandbox(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    backend, stranger = replica(), replica()
    spec = SandboxSpec(cluster.image("busybox"), ttl=300)
    old = await backend.create(spec, "again")
    await backend.delete(old.id)
    new = await backend.create(spec, "again")
    assert new.id != old.id
    assert (await backend.get(old.id)).state is State.GONE
    with suppress(NotFound):  # a replica that has seen nothing may know nothing, but never shows the new one
        assert (await stranger.get(old.id)).state is State.GONE
    await backend.delete(new.id)


async def test_a_create_that_failed_or_was_left_does_not_take_its_key_along(
    cluster: Cluster, namespace: str, replica: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replica(), replica()
    spec, name = SandboxSpec(cluster.image("busybox"), ttl=300), pod_name("", "again")
    live = await first.live()

    async def unreached(*_: object) -> None:
        raise Unavailable("no endpoint of the API server is reached from here", reason="no_witness")

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(live.maker, "_greet", unreached)
    with pytest.raises(Unavailable, match="no endpoint"):
        await first.create(spec, "again")
    assert pods(cluster, namespace) == []
    monkeypatch.setattr(live.maker, "_greet", silent)
    making = asyncio.ensure_future(first.create(spec, "again"))
    await until(lambda: has_run(live.cache.known(name) or {}))
    graces = set[int | None]()
    live.cache.listeners.append(lambda _, pod: graces.add((pod or {"metadata": {}})["metadata"].get(_GRACE)))
    making.cancel()
    await asyncio.wait([making])
    await until(lambda: UNDONE_GRACE in graces)
    made = await second.create(spec, "again")  # while the first Pod ends
    assert made.state is State.READY
    await second.delete(made.id)


async def test_one_replica_drives_what_another_made(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    first, second = Orchard(backend=replica()), Orchard(backend=replica())
    async with first, second, first.sandbox(cluster.image("busybox")) as box:
        started = await box.start("sleep 0.3; echo late; sleep 60")
        process = await (await second.attach(box.id)).attach(started.id)
        async for chunk in process:
            assert chunk.data == b"late\n"
            break
        assert [each.id for each in await second.list()] == [box.id]


async def test_a_foreign_pod_in_our_place_is_neither_taken_nor_touched(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    backend = replica()
    mine = await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), "mine")
    (copy,) = pods(cluster, namespace)
    forged = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod_name("", "theirs"), "labels": copy["metadata"]["labels"],
            "annotations": copy["metadata"]["annotations"],
        },
        "spec": {
            "containers": [{"name": "sandbox", "image": cluster.image("busybox"), "command": ["sleep", "600"]}],
            "terminationGracePeriodSeconds": 0,
        },
    }  # fmt: skip
    cluster.apply(forged, namespace=namespace)
    name = forged["metadata"]["name"]
    with pytest.raises(Conflict) as caught:
        await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), "theirs")
    assert caught.value.reason == "foreign"
    for attempt in (backend.get, backend.delete, backend.endpoint):
        with pytest.raises(NotFound):
            await attempt(f"{name}-aaaaaaaa")
    assert [info.id for info in (await backend.list()).items] == [mine.id]
    assert name in [pod["metadata"]["name"] for pod in pods(cluster, namespace)]
    await backend.delete(mine.id)


async def test_a_create_that_is_cancelled_leaves_nothing(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    backend = replica()
    spec = SandboxSpec(cluster.image("busybox"), ttl=300)
    for delay in (0.0, 0.005, 0.02, 0.1, 0.4, 0.8):
        making = asyncio.ensure_future(backend.create(spec, f"cut-{delay}"))
        await asyncio.sleep(delay)
        making.cancel()
        with suppress(asyncio.CancelledError):
            await backend.delete((await making).id)
    await gone(cluster, namespace)
    assert (await backend.list()).items == []


async def test_listing_goes_by_labels_in_pages_oldest_first(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    backend, other = replica(), replica()
    made = [
        await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300, labels={"kind": kind}), f"k{number}")
        for number, kind in enumerate("abaa")
    ]
    for each in (backend, other):
        page = await each.list({"kind": "a"}, limit=2)
        assert [info.id for info in page.items] == [made[0].id, made[2].id]
        rest = await each.list({"kind": "a"}, limit=2, cursor=page.next)
        assert ([info.id for info in rest.items], rest.next) == ([made[3].id], None)
    await asyncio.gather(*(backend.delete(info.id) for info in made))
    assert (await other.list()).items == []


async def test_a_scrape_counts_the_living_and_asks_none_of_them(
    cluster: Cluster, namespace: str, replica: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        pytest.fail("a sandbox was asked")

    backend = replica()
    made = [await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), f"k{number}") for number in range(2)]
    await backend.delete(made[0].id)
    with monkeypatch.context() as patch:
        patch.setattr(Daemons, "ask", refuse)
        assert b"orchard_sandboxes 1.0" in await Metrics(backend).scrape()
    await backend.delete(made[1].id)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cpu": 900}, "Insufficient cpu"), ({"cpu": 1e308}, "Insufficient cpu"),
        ({"memory": 10**30}, "Insufficient memory"), ({"disk": 900 << 40}, "Insufficient ephemeral-storage"),
    ],
    ids=["cpu", "cpu beyond any number", "memory beyond any number", "disk"],
)  # fmt: skip
async def test_what_no_node_could_hold_fails_at_once_and_leaves_nothing(
    cluster: Cluster, namespace: str, replica: Replicas, given: Any, words: str
) -> None:
    """At once: the time for a create is longer than the test's."""
    with pytest.raises(CreateFailed) as caught:
        await replica().create(SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=3600, **given), "huge")
    assert caught.value.reason == "unschedulable"
    assert words in caught.value.message
    assert pods(cluster, namespace) == []


async def test_what_finds_no_room_in_time_says_why_and_leaves_nothing(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    backend = replica(node_selector={"no": "such-node"})
    with pytest.raises(CreateFailed) as caught:
        await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=15), "late")
    assert caught.value.reason == "unschedulable"
    assert "selector" in caught.value.message
    assert pods(cluster, namespace) == []


async def test_a_pod_that_the_namespace_refuses_fails_with_the_clusters_words(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    spec = {"limits": [{"type": "Container", "min": {"memory": "1Gi"}}]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "large"}, "spec": spec}, namespace=namespace
    )
    with pytest.raises(CreateFailed) as caught:
        await replica().create(SandboxSpec(cluster.image("busybox"), ttl=300), "refused")
    assert caught.value.reason == "start_failed"
    assert "minimum memory usage per Container is 1Gi" in caught.value.message


async def test_where_a_sandbox_goes_and_what_it_runs_on_is_as_set(
    own_cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    """A node that only the tolerated may go to, a runtime of its own, a priority; a runtime that there is not."""
    node, image = own_cluster.nodes[-1], own_cluster.image("busybox")
    name, taint = f"own-{namespace}", f"orchard.test/{namespace}"
    classes = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "runc"},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 7},
    ]
    await asyncio.to_thread(own_cluster.apply, *classes)
    await asyncio.to_thread(own_cluster.kubectl, "taint", "node", node, f"{taint}=yes:NoSchedule")
    try:
        there = replica(
            node_selector={"kubernetes.io/hostname": node}, runtime_class=name, priority_class=name,
            tolerations=[{"key": taint, "operator": "Exists"}],
        )  # fmt: skip
        async with Orchard(backend=there).sandbox(image) as box:
            assert (await box.run("echo there")).text == "there\n"
            (pod,) = pods(own_cluster, namespace)
            told = (pod["spec"]["nodeName"], pod["spec"]["runtimeClassName"], pod["spec"]["priority"])
            assert told == (node, name, 7)
        async with Orchard(backend=replica()).sandbox(image):
            (pod,) = pods(own_cluster, namespace)
            assert pod["spec"]["nodeName"] != node
        with pytest.raises(CreateFailed, match="no-such-runtime") as caught:
            await replica(runtime_class="no-such-runtime").create(SandboxSpec(image, ttl=300), "none")
        assert caught.value.reason == "start_failed"
    finally:
        await asyncio.to_thread(own_cluster.kubectl, "taint", "node", node, f"{taint}-")
        for kind in ("runtimeclass", "priorityclass"):
            await asyncio.to_thread(own_cluster.kubectl, "delete", kind, name)


async def test_a_pod_that_a_rule_of_the_cluster_refuses_fails_with_its_words_and_is_not_the_callers_fault(
    cluster: Cluster, namespace: str, replica: Replicas
) -> None:
    def attempt() -> str:
        return cluster.kubectl("-n", namespace, "run", "dry", "--image=x", "--dry-run=server")

    with refused(cluster, namespace, "CREATE", "false", attempt), pytest.raises(CreateFailed) as caught:
        await replica().create(SandboxSpec(cluster.image("busybox"), ttl=300), "ruled")
    assert caught.value.reason == "start_failed"
    assert WORDS in caught.value.message


async def test_a_sandbox_ends_by_its_ttl_with_its_reason(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    backend, other = replica(), replica()
    made = await backend.create(SandboxSpec(cluster.image("busybox"), ttl=1.5), "short")
    for each in (other, backend):  # each learns of it by a watch of its own
        async with asyncio.timeout(PATIENCE):
            while (info := await each.get(made.id)).state is not State.GONE:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
    assert info.reason == "ttl"
    assert info.ended_at is not None
    with pytest.raises(SandboxGone) as caught:
        await backend.endpoint(made.id)
    assert caught.value.reason == "ttl"
    assert (await other.list()).items == []
    assert (await backend.create(SandboxSpec(cluster.image("busybox"), ttl=1.5), "short")).state is State.GONE
    await backend.delete(made.id)
    await gone(cluster, namespace)


async def test_an_unknown_id_is_not_found(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    backend = replica()
    for wrong in ("sb-nope", "x", pod_name("", "never") + "-aaaaaaaa"):
        for attempt in (backend.get, backend.delete, backend.endpoint):
            with pytest.raises(NotFound):
                await attempt(wrong)


async def test_a_namespace_that_is_missing_is_told_with_what_to_do(cluster: Cluster) -> None:
    backend = KubernetesBackend(settings_for(cluster, "nowhere-at-all"))
    try:
        with pytest.raises(NotFound) as caught:
            await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), "nowhere")
        assert caught.value.hint == "kubectl create namespace nowhere-at-all"
    finally:
        await backend.close()


async def test_the_record_shows_neither_token_nor_key(cluster: Cluster, namespace: str, replica: Replicas) -> None:
    backend = replica()
    made = await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), "secret")
    token = (await backend.endpoint(made.id)).headers["Authorization"].removeprefix("Bearer ")
    assert token not in json.dumps(pods(cluster, namespace))
    await backend.delete(made.id, wait=False)
    await gone(cluster, namespace)
