"""The cache of Pods against a real API server: it follows, and finds its way back whatever breaks."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for
from tests.support.waiting import until

from orchard.sandbox.kubernetes import KubernetesSettings, client
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.credentials import find_access
from orchard.sandbox.kubernetes.labels import SANDBOX


def simple_pod(cluster: Cluster, name: str) -> dict[str, Any]:
    container = {"name": "sandbox", "image": cluster.image("busybox"), "command": ["sleep", "600"]}
    spec = {"containers": [container], "nodeSelector": {"never": "scheduled"}, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {SANDBOX: "1"}}, "spec": spec}


@pytest.fixture
async def api(cluster: Cluster, namespace: str) -> AsyncIterator[client.Cluster]:
    connected = await client.Cluster.connect(settings_for(cluster, namespace))
    yield connected
    await connected.close()


@asynccontextmanager
async def following(api: client.Cluster) -> AsyncIterator[PodCache]:
    """A cache that has its first list, and is followed for the length of the block."""
    made = PodCache(api)
    running = asyncio.ensure_future(made.run())
    try:
        await made.synced()
        yield made
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.fixture
async def cache(api: client.Cluster) -> AsyncIterator[PodCache]:
    async with following(api) as made:
        yield made


@pytest.fixture
def make(cluster: Cluster, api: client.Cluster) -> Callable[[str], Any]:
    return lambda name: api.create(api.path("pods"), simple_pod(cluster, name))


def names(cache: PodCache) -> set[str]:
    return {pod["metadata"]["name"] for pod in cache.pods()}


async def test_it_follows_what_comes_changes_and_goes(
    api: client.Cluster, cache: PodCache, make: Callable[[str], Any]
) -> None:
    told: list[tuple[bool, bool]] = []
    cache.listeners.append(lambda old, new: told.append((old is None, new is None)))
    with cache.following("a") as view:
        assert view.pod is None
        await make("a")
        await view.changed()
        assert view.pod is not None
        await api.patch(api.path("pods", "a"), {"metadata": {"annotations": {"x": "y"}}})
        await until(lambda: view.pod is not None and (view.pod["metadata"].get("annotations") or {}).get("x") == "y")
        await api.delete(api.path("pods", "a"), grace=0)
        await until(lambda: view.pod is None)
    assert told[0] == (True, False)
    assert told[-1] == (False, True)
    assert cache.relists == 1


async def test_once_it_is_told_of_something_newer_it_knows_all_that_was_on_record(
    api: client.Cluster, cache: PodCache, make: Callable[[str], Any]
) -> None:
    """Many rounds, since a version told too early would mostly go unseen."""
    for number in range(20):
        await asyncio.gather(*(make(f"a{number}-{each}") for each in range(3)))
        page = await api.get(api.path("pods"), limit="1")
        reached = asyncio.ensure_future(cache.reached(str(page["metadata"]["resourceVersion"])))
        later = asyncio.ensure_future(make(f"b{number}"))
        await asyncio.wait_for(reached, 30.0)
        assert {f"a{number}-{each}" for each in range(3)} <= names(cache)
        await later


async def test_a_watch_whose_token_has_lapsed_reads_the_credentials_anew(
    cluster: Cluster, namespace: str, tmp_path: Path, make: Callable[[str], Any]
) -> None:
    """No other request does it first: such a replica only shows what it knows."""
    path = tmp_path / "config"
    cluster.write_kubeconfig(path, namespace)
    binding = ("rolebinding", "looks", "--clusterrole=view", f"--serviceaccount={namespace}:default")
    cluster.kubectl("-n", namespace, "create", *binding)
    access = await find_access(KubernetesSettings(namespace=namespace, kubeconfig=path))
    account = client.Cluster(KubernetesSettings(namespace=namespace, kubeconfig=path), access)
    try:
        async with following(account) as cache:
            vars(access.configuration)["api_key"]["BearerToken"] = "Bearer lapsed"
            cache.restart()
            await make("a")
            await until(lambda: names(cache) == {"a"})
    finally:
        await account.close()


async def test_a_watch_that_is_cut_goes_on_where_it_was_without_listing(
    cache: PodCache, make: Callable[[str], Any]
) -> None:
    await make("a")
    await until(lambda: names(cache) == {"a"})
    cache.restart()
    await make("b")
    await until(lambda: names(cache) == {"a", "b"})
    assert cache.relists == 1


async def test_a_bookmark_carries_the_watch_past_what_is_not_ours(
    cluster: Cluster, api: client.Cluster, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours changes, and yet the version from which it would go on grows: so it is kept when needed."""
    monkeypatch.setattr(client, "_WATCH_SECONDS", 5)  # two seconds before the end of a watch comes a bookmark
    asked, real = list[int](), api.watch

    def noting(path: str, version: str, **params: str) -> Any:
        asked.append(int(version))
        return real(path, version, **params)

    monkeypatch.setattr(api, "watch", noting)
    async with following(api) as cache:
        ours = int((await make("ours"))["metadata"]["resourceVersion"])
        other = simple_pod(cluster, "other")
        other["metadata"]["labels"] = {}
        theirs = int((await api.create(api.path("pods"), other))["metadata"]["resourceVersion"])
        await until(lambda: asked[-1] >= theirs)
        assert (ours < theirs, names(cache), cache.relists) == (True, {"ours"}, 1)


async def test_a_version_that_is_no_longer_kept_leads_to_a_new_list_that_loses_nothing(
    api: client.Cluster, cache: PodCache, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await make("stays")
    await make("goes")
    await until(lambda: names(cache) == {"stays", "goes"})
    gone: list[str] = []
    cache.listeners.append(lambda old, new: gone.append(old["metadata"]["name"]) if old and new is None else None)
    path = api.path("pods")
    await forgotten(api, "stays")
    uid = (await api.get(f"{path}/goes"))["metadata"]["uid"]
    watching, missed = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(api, "watch", _forgetful(api, watching, missed))
    cache.restart()
    await watching.wait()  # the watch before has ended: what happens now is missed
    await api.delete(f"{path}/goes", uid=uid, grace=0)
    await make("comes")
    missed.set()
    await until(lambda: names(cache) == {"stays", "comes"})
    assert gone == ["goes"]
    assert cache.relists == 2


async def forgotten(api: client.Cluster, name: str) -> None:
    """Return once the API server has forgotten version 1. A new one does so after a minute, and a hundred changes."""
    async with asyncio.timeout(180):
        for number in itertools.count():
            try:
                async with asyncio.timeout(1), api.watch(api.path("pods"), "1") as events:
                    await anext(events)
            except client.Expired:
                return
            except TimeoutError:
                pass
            for each in range(20):
                await api.patch(api.path("pods", name), {"metadata": {"annotations": {"x": f"{number}.{each}"}}})


def _forgetful(api: client.Cluster, watching: asyncio.Event, missed: asyncio.Event) -> Callable[..., Any]:
    """Wait with the next watch until events are missed, then ask for a version that no API server keeps."""
    real = api.watch

    @asynccontextmanager
    async def watch(path: str, version: str, **params: str) -> AsyncIterator[Any]:
        if not missed.is_set():
            watching.set()
            await missed.wait()
            version = "1"
        async with real(path, version, **params) as events:
            yield events

    return watch


async def test_an_answer_that_comes_late_does_not_bring_back_what_is_gone_or_old(
    api: client.Cluster, cache: PodCache, make: Callable[[str], Any]
) -> None:
    first = await make("a")
    await api.patch(api.path("pods", "a"), {"metadata": {"annotations": {"x": "y"}}})
    await until(lambda: "a" in names(cache) and "x" in ((cache.known("a") or {})["metadata"].get("annotations") or {}))
    cache.put(first)
    assert "x" in (cache.known("a") or {})["metadata"]["annotations"]
    await api.delete(api.path("pods", "a"), grace=0)
    await until(lambda: cache.known("a") is None)
    cache.put(first)
    assert cache.known("a") is None
    assert await cache.get("a") is None


async def test_an_api_server_that_is_away_for_a_while_is_found_again(
    cluster_to_break: Cluster, cache: PodCache, make: Callable[[str], Any]
) -> None:
    await make("before")
    await until(lambda: names(cache) == {"before"})
    with cluster_to_break.stopped("apiserver", grace=0):
        assert names(cache) == {"before"}  # what is known stays
        late = asyncio.ensure_future(make("after"))  # a request outlasts the restart
        await asyncio.sleep(1)
        assert not late.done()
    await late
    await until(lambda: names(cache) == {"before", "after"})
