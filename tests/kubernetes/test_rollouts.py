"""Rollouts on the cluster: the demo's, whose verdicts are as here; one that is evicted; a program from tool layers."""

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.deployment import deployed
from tests.kubernetes.replicas import replicas
from tests.support import toy
from tests.support.service import ORCHARD

from orchard.core.config import cache_dir
from orchard.core.errors import MachineUnfit, Unsupported
from orchard.evals.run import evaluate
from orchard.gateway import ScriptEngine, bash_step
from orchard.harness.protocol import SUBMIT_MARKER
from orchard.harness.registry import create_harness
from orchard.rollout.check import check
from orchard.rollout.folder import read_run
from orchard.rollout.jobs import Event
from orchard.rollout.policies import Policy
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.toolpush import push
from orchard.tasks.model import Task
from orchard.trajectories import RolloutRecord

TASK = "xmltodict@0.14.1..0.14.2"
REWARDS = {"gold": 1.0, "script:commit-and-fix": 1.0, "noop": 0.0, "script:hardcode": 0.0, "script:edit-tests": 0.0}
HARNESSES = ("bash-loop", "mini-swe-agent")
PROGRAM = "codex"


def cache_without_images(folder: Path) -> Path:
    """Return a cache that has what was fetched, but nothing that was prepared."""
    for name in ("packages", "sdists", "harness", "layers", "tools"):
        (cache_dir() / name).mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(cache_dir() / name)
    return folder


@pytest.mark.timeout(900)
async def test_the_demo_runs_on_the_cluster_with_the_verdicts_that_it_has_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    repository = f"{cluster.registry}/rollouts-{secrets.token_hex(4)}/commits"
    with deployed(cluster, tmp_path, settings={"commit_repository": repository}) as release:
        env = {**os.environ, "ORCHARD_HOME": str(tmp_path), "ORCHARD_API_KEY": release.api_key}
        env["ORCHARD_CACHE"] = str(cache_without_images(tmp_path / "cache"))
        where = ["--url", release.urls()[0], "--image", cluster.image("debian")]
        demo = await asyncio.create_subprocess_exec(
            *ORCHARD, "demo", *where, "--only", TASK, "--run", str(tmp_path / "run"), "--json", env=env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await demo.communicate()
        assert demo.returncode == 0, errors.decode()
        cells = json.loads(output)["cells"]
        rewards = {(cell["harness"], cell["policy"]): cell["reward"] for cell in cells}
        assert rewards == {(harness, policy): reward for harness in HARNESSES for policy, reward in REWARDS.items()}
        with read_run(tmp_path / "run") as run:
            records = [record for record in run.store.records() if isinstance(record, RolloutRecord)]
        assert {record.environment["image"] for record in records} == {records[0].environment["image_digest"]}
        assert cluster.get("-n", release.sandboxes, "pods", "-l", "orchard/sandbox")["items"] == []


@dataclass(frozen=True)
class OnPods(toy.Toy):
    """The toy of the rollout engine in an image of the cluster's registry."""

    image: str = ""

    async def prepare(self, orchard: Orchard) -> Task:
        task = await super().prepare(orchard)
        return task.model_copy(update={"image": self.image, "workdir": "/var"})


async def test_a_rollout_whose_pod_is_evicted_is_infrastructures_and_tried_again(
    cluster: Cluster, namespace: str, replica: Callable[..., KubernetesBackend], tmp_path: Path
) -> None:
    """Evicted by the API in the middle of a command, as a drain and an autoscaler do it."""
    toy.register()
    seen, asked = list[Event](), asyncio.Event()

    def answer(messages: Sequence[Mapping[str, Any]], _: Any) -> Any:
        asked.set()
        if any(message["role"] == "tool" for message in messages):
            return bash_step(f"echo {SUBMIT_MARKER}")
        evicted = any(event.kind == "failed" for event in seen)
        return bash_step("echo mended > note" + ("" if evicted else "; sleep 600"))

    async def evict() -> None:
        await asked.wait()
        (pod,) = (await asyncio.to_thread(cluster.get, "-n", namespace, "pods"))["items"]
        about = {"name": pod["metadata"]["name"], "namespace": namespace}
        words = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about})
        path = f"/api/v1/namespaces/{namespace}/pods/{about['name']}/eviction"
        await asyncio.to_thread(cluster.kubectl, "create", "--raw", path, "-f", "-", stdin=words)

    engine = ScriptEngine(answer)
    plan = toy.plan(tmp_path / "run", 1, Policy("evicted", "script", lambda task: engine))
    plan = replace(plan, sources=[OnPods("toy", image=cluster.image("busybox"))])
    async with Orchard(backend=replica()) as orchard:
        evicting = asyncio.create_task(evict())
        await evaluate(plan, orchard, seen.append)
        evicting.cancel()
        await asyncio.wait([evicting])
    failures = [event.failure for event in seen if event.kind == "failed"]
    assert [(failure.seam, failure.reason) for failure in failures if failure] == [("sandbox", "evicted")]
    with read_run(tmp_path / "run") as run:
        [record] = run.records()
    assert (record.tries, record.failure, record.stop, record.reward) == (2, None, "submitted", 1.0)


@pytest.mark.timeout(900)
async def test_a_program_from_tool_layers_mends_the_toy_in_pods_through_a_service(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers come as image volumes; the program reaches the model by a tunnel, out of a Pod without network."""
    monkeypatch.setenv("ORCHARD_CACHE", str(cache_without_images(tmp_path / "cache")))
    driver = create_harness(PROGRAM)
    try:
        await driver.install()
        layers = await driver.tools()
    except (MachineUnfit, Unsupported) as error:
        pytest.skip(f"{PROGRAM} cannot be installed here: {error}")
    registry = cluster.registry
    for layer in layers:
        await push(layer, f"{registry}/tools", plain=cluster.plain)
    made = {"tools_repository": f"{registry}/tools", "commit_repository": f"{registry}/toy-{secrets.token_hex(4)}/made"}
    with replicas(cluster, tmp_path, 1, **made) as running:
        async with running.door(0) as orchard:
            report = await check(PROGRAM, orchard, tmp_path / "run", image=cluster.image("debian"))
            assert report.ok, report
            assert await orchard.list() == []
    assert (report.harness, report.placement) == (PROGRAM, "inside")
    with read_run(tmp_path / "run") as run:
        [record] = run.records()
    assert (record.environment["backend"], record.environment["tools"]) == ("kubernetes", list(layers))
