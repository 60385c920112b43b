"""Both looks at a tenant's quota: what they count, and what they ask the API server for."""

import asyncio
from typing import Any

import pytest
from tests.support.pods import KEY, TENANT, Server, body, identity
from tests.support.waiting import until

from orchard.core.errors import QuotaExceeded
from orchard.sandbox.kubernetes import deaths, quota
from orchard.sandbox.kubernetes.quota import Quotas


@pytest.fixture(autouse=True)
def _short_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_TICK", 0.02)
    monkeypatch.setattr(quota, "_SILENCE", 60.0)


async def forever() -> Any:
    await asyncio.Event().wait()


async def test_a_pod_that_the_watch_tells_of_before_its_post_is_answered_takes_one_place() -> None:
    server, most = Server(), 4
    async with server.cache() as cache:
        quotas = Quotas(server.as_cluster, cache, KEY)

        async def make(key: str) -> None:
            async with quotas.room(TENANT, identity(key).name, most):
                await server.create("/pods", body(key))
                told.append(key)
                await answered.wait()

        told, answered = list[str](), asyncio.Event()
        making = [asyncio.ensure_future(make(f"k{number}")) for number in range(most // 2)]
        await until(lambda: len(told) == most // 2)
        assert all(cache.known(identity(key).name) is not None for key in told)
        making += [asyncio.ensure_future(make(f"l{number}")) for number in range(most // 2)]
        await asyncio.sleep(0)
        answered.set()
        await asyncio.gather(*making)
        with pytest.raises(QuotaExceeded):
            await make("one too many")


async def test_places_that_are_asked_for_and_not_on_record_count() -> None:
    server = Server()
    async with server.cache() as cache:
        quotas = Quotas(server.as_cluster, cache, KEY)
        async with quotas.room(TENANT, "sb-a", 1):
            with pytest.raises(QuotaExceeded):
                async with quotas.room(TENANT, "sb-b", 1):
                    raise AssertionError("there is one place")
        async with quotas.room(TENANT, "sb-b", 1):
            pass


async def test_what_is_deleted_gives_its_place_back_at_once_and_its_own_key_needs_room_if_it_was_undone() -> None:
    server, name = Server(lasts=0.2), identity("a").name
    async with server.cache() as cache:
        quotas = Quotas(server.as_cluster, cache, KEY)
        await server.create("/pods", body("a"))
        await until(lambda: cache.known(name) is not None)
        async with quotas.room(TENANT, name, 1):  # it joins the one that it has
            pass
        await server.delete(f"/pods/{name}", grace=deaths.UNDONE_GRACE)
        await until(lambda: "deletionTimestamp" in (cache.known(name) or {})["metadata"])
        async with quotas.room(TENANT, identity("b").name, 1):
            with pytest.raises(QuotaExceeded):
                async with quotas.room(TENANT, name, 1):
                    raise AssertionError("it would be made anew")


@pytest.fixture
async def crowd(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with five Pods of the tenant, more than a list is made of."""
    monkeypatch.setattr(quota, "_FEW", 3)
    server = Server()
    for number in range(5):
        await server.create("/pods", body(f"k{number}", second=number))
    return server


@pytest.mark.parametrize(("most", "lives"), [(5, False), (6, True)])
async def test_of_many_a_list_is_not_asked_for_while_the_watch_tells(crowd: Server, most: int, lives: bool) -> None:
    async with crowd.cache() as cache:
        quotas = Quotas(crowd.as_cluster, cache, KEY)
        await crowd.create("/pods", body("late"))
        checking = asyncio.ensure_future(quotas.within(identity("late"), most, 0.0, forever()))
        if lives:
            assert not (await asyncio.wait([checking], timeout=0.15))[0]
            checking.cancel()
        else:
            with pytest.raises(QuotaExceeded):
                await checking
        assert crowd.lists == 0


async def test_the_cache_is_believed_once_it_knows_all_that_was_on_record(crowd: Server) -> None:
    """One that another replica has made stands before ours, and the watch is late to tell of it."""
    async with crowd.cache() as cache:
        quotas = Quotas(crowd.as_cluster, cache, KEY)
        await crowd.create("/pods", body("late"))
        crowd.telling = False
        await crowd.create("/pods", body("other", second=9))
        checking = asyncio.ensure_future(quotas.within(identity("late"), 6, 0.0, forever()))
        await asyncio.sleep(0.1)
        assert not checking.done()
        crowd.tell("ADDED", identity("other").name)
        with pytest.raises(QuotaExceeded):
            await checking
        assert crowd.lists == 0


async def test_where_the_watch_is_silent_a_list_tells(crowd: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_SILENCE", 0.2)
    async with crowd.cache() as cache:
        quotas = Quotas(crowd.as_cluster, cache, KEY)
        crowd.telling = False
        await crowd.create("/pods", body("late"))
        with pytest.raises(QuotaExceeded):
            await quotas.within(identity("late"), 5, 0.0, forever())
        assert crowd.lists == 1


async def test_a_pod_that_took_long_to_get_on_record_looks_as_much_later() -> None:
    """As long as it others may have been held up, who are of the same second and stand before it."""
    server, clock = Server(), asyncio.get_running_loop()
    async with server.cache() as cache:
        quotas = Quotas(server.as_cluster, cache, KEY)
        await server.create("/pods", body("held up"))
        checking = asyncio.ensure_future(quotas.within(identity("held up"), 1, 0.5, forever()))
        began = clock.time()
        await until(lambda: server.lists == 1)
        assert clock.time() - began >= 0.49
        checking.cancel()
