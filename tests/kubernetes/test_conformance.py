"""The conformance suite on Pods, straight and through a service; what a Pod cannot have is excepted by name."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Set
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kubernetes.cluster.build import one_crowd
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for, special_images
from tests.kubernetes.replicas import replicas, write_settings

from orchard.sandbox.conformance import CHECKS, LATER, Check, Context, Report, run
from orchard.sandbox.conformance.targets import kubernetes, service

ALLOWED = {"pids", "oom-score", "oom-of-children", "cpu-count", "disk"}
"""Features that a Pod cannot have."""
ELSEWHERE = {
    "after delete(wait=True) no process, mount, namespace, cgroup or file is left",
    "a sandbox whose daemon died is an error, never a blank one",
    "an image that does not exist: the reason within 10 s",
    "a private registry: the reason within 10 s",
    "pulling shows as pulling, and the ready clock starts after it",
    "during 200 slow creates the service's health answers in under 100 ms",
    "a mount of the host is refused unless it is allowed",
}
"""Checks that look at the backend's machine, which is a node here; ``test_truth`` and ``test_backend`` hold them."""
WITHOUT = {"python3", "git", "useradd", "apt-get", "stty"}
"""Programs of checks that a root of busybox alone has not."""
CROWDS = {57, 60}
"""Lines that fill both nodes."""
LINES = {check.line for check in CHECKS} | {line for line, _, _ in LATER}
Checks = Callable[[Context], Coroutine[None, None, Report]]

pytestmark = [pytest.mark.suite, pytest.mark.timeout(2700)]


async def whole(context: Context) -> Report:
    """Run all checks; a hundred creates and a thousand commands at the end, while no other test makes as many."""
    most = await run(context, lines=LINES - CROWDS)
    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, one_crowd())
        crowd = await run(context, lines=CROWDS)
    return Report(most.backend, [*most.outcomes, *crowd.outcomes])


def straight(cluster: Cluster, folder: Path, image: str, checks: Checks) -> Report:
    """Return the report of ``checks`` without a service between."""

    async def go() -> Report:
        special = special_images(cluster.registry, cluster.plain)
        async with kubernetes(cluster.image(image), special) as context:
            return await checks(context)

    path = folder / "kubernetes.toml"
    with cluster.namespace() as namespace, pytest.MonkeyPatch.context() as patch:
        write_settings(path, settings_for(cluster, namespace))
        patch.setenv("ORCHARD_KUBERNETES", str(path))
        return asyncio.run(go())


@pytest.fixture(scope="module")
def on_pods(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return straight(cluster, tmp_path_factory.mktemp("kubernetes"), "debian", whole)


@pytest.fixture(scope="module")
def on_busybox(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """All but the crowds, which are the same in any image."""
    return straight(
        cluster, tmp_path_factory.mktemp("busybox"), "busybox", lambda context: run(context, lines=LINES - CROWDS)
    )


@pytest.fixture(scope="module")
def on_service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    async def go(url: str, key: str) -> Report:
        special = special_images(cluster.registry, cluster.plain)
        async with service(url, key, cluster.image("debian"), special) as context:
            return await whole(context)

    with replicas(cluster, Path(tmp_path_factory.mktemp("service")), 1) as running:
        yield asyncio.run(go(running.services[0].url, running.key))


def judge(report: Report, check: Check, lacking: Set[str] = frozenset()) -> None:
    """A check need not apply where the image lacks its program, one of ``lacking``."""
    found = next(each for each in report.outcomes if (each.line, each.claim) == (check.line, check.claim))
    if found.verdict == "excepted":
        assert {check.feature, *check.also} & ALLOWED, found.detail
    elif found.verdict == "not applicable":
        between = check.feature == "service" and report.backend == "kubernetes"
        without = bool(lacking & set(check.tools)) and found.detail.startswith("the image has no ")
        assert check.claim in ELSEWHERE or between or without, found.detail
    else:
        assert found.verdict == "passed", found.detail


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_on_pods(on_pods: Report, check: Check) -> None:
    judge(on_pods, check)


@pytest.mark.parametrize("check", [each for each in CHECKS if each.line not in CROWDS], ids=lambda check: check.name)
def test_on_busybox(on_busybox: Report, check: Check) -> None:
    judge(on_busybox, check, lacking=WITHOUT)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_remote_over_pods(on_service: Report, check: Check) -> None:
    judge(on_service, check)
