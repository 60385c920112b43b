"""Replicas are added by what those that are there use: with the real metrics-server, by ``make test-scaling``."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.deployment import RELEASE, Deployment, deployed
from tests.support.waiting import until

pytestmark = [pytest.mark.scaling, pytest.mark.timeout(900)]  # images and metrics-server may have to be built first
LEAST, MOST = 2, 4
GIVEN = {"autoscaling": {"enabled": True, "minReplicas": LEAST, "maxReplicas": MOST}, "replicas": 1}


@pytest.fixture
def measured(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which says what pods use."""
    if cluster.tells_use:
        yield cluster
        return
    if not cluster.ours:
        pytest.skip("the cluster that KUBECONFIG names has no metrics-server (no metrics.k8s.io)")
    with cluster.measured():
        yield cluster


@contextlib.asynccontextmanager
async def load(urls: list[str]) -> AsyncGenerator[None]:
    """Keep every replica as busy as it can be."""

    async def ask(http: aiohttp.ClientSession, url: str) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):  # a replica that goes
                async with http.get(f"{url}/v1/health") as answer:
                    await answer.read()

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(http, url)) for url in urls for _ in range(4)]
        yield
        for task in asking:
            task.cancel()


def uses(release: Deployment) -> list[int]:
    """What the scaler reads: the part of the requested CPU in use, in percent."""
    told = release.get("hpa", RELEASE)["status"].get("currentMetrics") or ()
    return [
        each["resource"]["current"]["averageUtilization"]
        for each in told
        if "averageUtilization" in each.get("resource", {}).get("current", {})
    ]


async def test_load_adds_replicas_that_an_upgrade_keeps_and_the_budget_counts(
    measured: Cluster, tmp_path: Path
) -> None:
    def holds(release: Deployment) -> bool:
        return release.scaler().get("ScalingActive") == ("True", "ValidMetricFound") and bool(uses(release))

    def at_rest(release: Deployment) -> bool:
        return release.whole() and release.budget()[1:] == (release.replicas - 1, release.replicas, 1)

    with deployed(measured, tmp_path, **GIVEN) as release:
        await until(lambda: asyncio.to_thread(holds, release), 300)
        await until(lambda: asyncio.to_thread(at_rest, release), 120)
        before = release.replicas
        assert LEAST <= before < MOST, uses(release)
        async with load(release.urls()):
            await until(lambda: asyncio.to_thread(lambda: release.replicas > before), 300)
            await asyncio.to_thread(release.helm, "upgrade", tmp_path, **GIVEN)
            assert await asyncio.to_thread(lambda: release.replicas) > before
            await until(lambda: asyncio.to_thread(at_rest, release), 180)
        why = [each["message"] for each in release.get("events", "--field-selector=reason=SuccessfulRescale")["items"]]
        assert any("cpu resource utilization" in each and "above target" in each for each in why), why
