"""Fixtures of the cluster lane: the cluster of this machine, or the one that ``KUBECONFIG`` names."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from tests.kubernetes.cluster.build import one_crowd
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for

from orchard.sandbox.kubernetes import KubernetesBackend

_FIRST = ("rollouts", "deploy", "truth", "backend", "commit", "replicas", "faults", "reap", "network", "quota")
"""Files that take long, so that none is left over. The hundred creates of ``reap`` come after ``deploy``, whose streams
go through rules that the firewall writes late meanwhile. Others fill the gaps."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what breaks the cluster; of the rest a file is one worker's, each run of the suite another's."""
    places = {f"test_{name}": place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if "cluster_to_break" in fixtures:
            item.add_marker("alone")
        run = next((name for name in fixtures if name.startswith("on_")), "")
        item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{run}"))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster, brought up where it is not; ``make cluster-down`` ends it."""
    found = Cluster()
    found.up()
    return found


@pytest.fixture
def a_hundred_pods() -> Iterator[None]:
    """See ``one_crowd``."""
    with one_crowd():
        yield


@pytest.fixture
def own_cluster(cluster: Cluster) -> Cluster:
    """Our own cluster, for tests that need what only it has: a second registry, an outer world, spare resources.

    Others run beside them: what is not in their own namespace they leave as it is, or as others do not notice.
    """
    if not cluster.ours:
        pytest.skip("KUBECONFIG names another's cluster, which has not all that this test needs")
    return cluster


@pytest.fixture
def cluster_to_break(own_cluster: Cluster) -> Iterator[Cluster]:
    """Our own cluster, for a test that breaks its parts or adds nodes; what it leaves dead is started again."""
    yield own_cluster
    own_cluster.up()
    own_cluster.wait_for_nodes()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test, under PodSecurity ``baseline``."""
    with cluster.namespace() as name:
        yield name


@pytest.fixture
async def replica(cluster: Cluster, namespace: str) -> AsyncIterator[Callable[..., KubernetesBackend]]:
    """Makes replicas: backends that share nothing but the namespace."""
    made: list[KubernetesBackend] = []

    def make(**given: Any) -> KubernetesBackend:
        made.append(KubernetesBackend(settings_for(cluster, namespace, **given)))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()
