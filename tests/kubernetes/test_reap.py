"""Whatever of ours dies, sandboxes end by their own lease, and what is left of them is removed by whoever comes by."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import WITHIN, wait_until
from tests.kubernetes.daemon import pods, settings_for
from tests.kubernetes.rules import WORDS, refused
from tests.support.waiting import until

from orchard.core.config import base_env
from orchard.core.errors import OrchardError
from orchard.sandbox.kubernetes import KubernetesBackend, KubernetesSettings
from orchard.sandbox.kubernetes.identity import name_of, pod_name
from orchard.sandbox.kubernetes.pod import DEADLINE
from orchard.sandbox.types import SandboxSpec, State

_CREATES = 100
_OWNER = """
import asyncio, sys
from orchard.sandbox import Orchard
async def main():
    async with Orchard() as orchard:
        box = await orchard.create(sys.argv[1], ttl=20)
        print(box.id, flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""
_EXTENDER = """
import asyncio, sys
from orchard.sandbox import Orchard
async def main():
    async with Orchard() as orchard:
        print("up", flush=True)
        await (await orchard.attach(sys.stdin.readline().strip())).extend(60)
        print("extended", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""
_CROWD = """
import asyncio, sys
from contextlib import suppress
from dataclasses import replace
from orchard.core.errors import OrchardError
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.kubernetes.settings import load_settings
from orchard.sandbox.types import SandboxSpec
async def main():
    spec, count = SandboxSpec(sys.argv[1], ttl=10, create_timeout=60), int(sys.argv[2])
    settings = replace(load_settings(), creates=count)
    nowhere = KubernetesBackend(replace(settings, node_selector={"no": "such-node"}))
    usual = KubernetesBackend(settings)
    async def stuck(number):
        for again in range(100):
            with suppress(OrchardError):
                await nowhere.create(replace(spec, create_timeout=(17, 23, 29)[number]), f"stuck-{number}-{again}")
    making = [stuck(number) for number in range(3)]
    making += [usual.create(spec, f"k{number}") for number in range(count)]
    await asyncio.gather(*making, return_exceptions=True)
asyncio.run(main())
"""


def write_settings(settings: KubernetesSettings, file: Path) -> None:
    """Write what a process of its own needs to be a replica."""
    plain = ("namespace", "daemon_image", "pull_timeout")
    lines = [f"{name} = {json.dumps(getattr(settings, name))}" for name in plain]
    lines += [f'kubeconfig = "{settings.kubeconfig}"', f"insecure_registries = {list(settings.insecure_registries)}"]
    lines += ["[requests]", *(f'{name} = "{value}"' for name, value in settings.requests.items())]
    lines += ["[ingress]", f"cidrs = {list(settings.ingress.cidrs)}"]
    file.write_text("\n".join(lines))


@contextmanager
def process(script: str, settings: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, which is killed at the end of the block, if not before."""
    env = {**base_env(), "ORCHARD_KUBERNETES": str(settings), "ORCHARD_BACKEND": "kubernetes"}
    started = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def state(pod: dict[str, Any]) -> set[str]:
    """Return the states that the Pod's containers are in; those of the daemon's installer left out."""
    return {name for each in pod["status"].get("containerStatuses", []) for name in each["state"]}


@pytest.fixture(scope="module")
def orphan(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, datetime]]:
    """A sandbox of 20 s that another process extended to 60 before both were killed: namespace, id, when."""
    with cluster.namespace() as namespace:
        file = tmp_path_factory.mktemp("settings") / "kubernetes.toml"
        write_settings(settings_for(cluster, namespace), file)
        with process(_EXTENDER, file) as extender:
            assert line(extender) == "up"  # what takes long comes before the lease begins
            with process(_OWNER, file, cluster.image("busybox")) as owner:
                sandbox_id = line(owner)
                print(sandbox_id, file=extender.stdin, flush=True)
                assert line(extender) == "extended"
                at = datetime.now(UTC)
        yield namespace, sandbox_id, at


def test_a_foreign_pod_is_left_alone(orphan: tuple[str, str, datetime], cluster: Cluster, namespace: str) -> None:
    """One with our label, one with the name and all notes of ours, one whose proof was copied: all of them ended."""
    asyncio.run(_foreign(cluster, namespace, settings_for(cluster, namespace)))


async def _foreign(cluster: Cluster, namespace: str, settings: KubernetesSettings) -> None:
    backend = KubernetesBackend(settings)
    made = await backend.create(SandboxSpec(cluster.image("busybox"), ttl=300), "ours")
    (ours,) = pods(cluster, namespace)
    notes, tags = ours["metadata"]["annotations"], ours["metadata"]["labels"]
    await backend.delete(made.id)
    main = {"name": "sandbox", "image": cluster.image("scratch"), "args": ["hello"]}
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [main]}
    strangers = {
        "theirs": {"labels": tags},
        name_of(made.id): {"labels": tags, "annotations": {**notes, "orchard/mac": "0" * 64}},
        pod_name("", "other"): {"labels": tags, "annotations": notes},
    }
    for name, metadata in strangers.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
        cluster.apply(pod, namespace=namespace)
    over = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("-n", namespace, "wait", over, *(f"pod/{name}" for name in strangers), WITHIN)
    assert await backend.reap() == []
    await backend.close()
    assert {pod["metadata"]["name"] for pod in pods(cluster, namespace)} == strangers.keys()


@pytest.mark.timeout(1200, func_only=True)  # who waits for his turn is not late
def test_creates_whose_process_is_killed_leave_nothing(
    orphan: tuple[str, str, datetime], cluster: Cluster, namespace: str, a_hundred_pods: None, tmp_path: Path
) -> None:
    """Some are ready by then, some on their way, some will never find a node; two reapers at a time clear up."""
    file = tmp_path / "kubernetes.toml"
    write_settings(settings_for(cluster, namespace, pull_timeout=5.0), file)
    with process(_CROWD, file, cluster.image("busybox"), str(_CREATES)) as crowd:
        wait_until(lambda: in_the_middle(pods(cluster, namespace)), "half of the Pods, one of them running", 400)
        crowd.kill()
        crowd.wait()
    stuck = hopeless(pods(cluster, namespace))
    reaped: dict[str, str] = {}

    def cleared() -> bool:
        if "never_started" not in reaped.values():
            stuck.intersection_update(hopeless(pods(cluster, namespace)))  # one may have been on its way out
        for done in [start_reaper(file) for _ in range(2)]:
            out, _ = done.communicate()
            assert done.returncode == 0
            reaped.update({each["pod"]: each["why"] for each in json.loads(out)})
        return not pods(cluster, namespace)

    wait_until(cleared, "the end of all Pods", 300)
    assert set(reaped.values()) == {"ended", "never_started"}
    assert {name for name, why in reaped.items() if why == "never_started"} >= stuck > set()


def in_the_middle(made: list[dict[str, Any]]) -> bool:
    return len(made) > _CREATES // 2 and any("running" in state(pod) for pod in made) and bool(hopeless(made))


def hopeless(made: list[dict[str, Any]]) -> set[str]:
    """Return the names of those that no node takes."""
    return {pod["metadata"]["name"] for pod in made if "no" in pod["spec"]["nodeSelector"]}


def start_reaper(settings: Path) -> subprocess.Popen[bytes]:
    env = {**base_env(), "ORCHARD_KUBERNETES": str(settings)}
    command = [sys.executable, "-c", "from orchard.cli.main import run; run()", "reap", "--once", "--json"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE)


async def test_a_pod_that_may_not_be_removed_keeps_no_other(
    cluster: Cluster, namespace: str, replica: Callable[..., KubernetesBackend]
) -> None:
    """The first of three is under a rule of the cluster's; all were left by a process that has ended."""
    backend = replica(node_selector={"no": "such-node"})
    spec = SandboxSpec(cluster.image("busybox"), ttl=300, create_timeout=600)
    making = [asyncio.ensure_future(backend.create(spec, f"left-{number}")) for number in range(3)]
    await until(lambda: asyncio.to_thread(lambda: len(pods(cluster, namespace)) == 3))
    backend.leave()
    for each in making:
        each.cancel()
    await asyncio.gather(*making, return_exceptions=True)
    await backend.close()
    past = f"{DEADLINE}={datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    cluster.kubectl("-n", namespace, "annotate", "pods", "--all", "--overwrite", past)
    kept = min(pod["metadata"]["name"] for pod in pods(cluster, namespace))

    def attempt() -> str:
        return cluster.kubectl("-n", namespace, "delete", "pod", kept, "--dry-run=server")

    with refused(cluster, namespace, "DELETE", f"request.name != '{kept}'", attempt):
        with pytest.raises(OrchardError, match=WORDS):
            await KubernetesBackend(backend.settings).reap()
        assert [pod["metadata"]["name"] for pod in pods(cluster, namespace)] == [kept]


def test_a_lease_outlives_those_who_gave_it_and_not_its_time(
    orphan: tuple[str, str, datetime], cluster: Cluster
) -> None:
    """By the node's own clock: beyond its first 20 s, not beyond the 60, though nobody of ours was there to end it."""
    namespace, sandbox_id, at = orphan
    (pod,) = pods(cluster, namespace)
    sleep_until(at + timedelta(seconds=62))
    wait_until(lambda: state(pods(cluster, namespace)[0]) == {"terminated"}, "the kubelet's word on the end")
    (after,) = pods(cluster, namespace)
    ended = after["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert timedelta(seconds=40) < datetime.fromisoformat(ended) - at < timedelta(seconds=65)
    info = asyncio.run(_told(settings_for(cluster, namespace), sandbox_id))
    assert (info.state, info.reason) == (State.GONE, "ttl")


def sleep_until(when: datetime) -> None:
    time.sleep(max(0.0, (when - datetime.now(UTC)).total_seconds()))


async def _told(settings: KubernetesSettings, sandbox_id: str) -> Any:
    backend = KubernetesBackend(settings)
    try:
        return await backend.get(sandbox_id)
    finally:
        await backend.close()
