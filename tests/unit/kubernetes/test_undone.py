"""A create that failed leaves its key free: what is left of its Pod is waited out, never told as a sandbox."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.pods import KEY, SETTINGS, SPEC, Server, body, identity
from tests.support.waiting import until

from orchard.core.errors import CreateFailed, QuotaExceeded, Unavailable
from orchard.sandbox.kubernetes import creating, deaths, quota
from orchard.sandbox.kubernetes.complaints import Complaints
from orchard.sandbox.kubernetes.creating import Maker
from orchard.sandbox.kubernetes.reap import Reaper
from orchard.sandbox.kubernetes.tombstones import Tombstones


class Daemons:
    """Every sandbox's daemon."""

    error: Exception | None = None
    answers = True

    async def greet(self, sandbox_id: str, address: str, network: str) -> None:
        if self.error is not None:
            raise self.error
        if not self.answers:
            await asyncio.Event().wait()


@pytest.fixture
def server() -> Server:
    return Server(lasts=0.7)


@pytest.fixture
def daemons() -> Daemons:
    return Daemons()


@pytest.fixture
async def maker(server: Server, daemons: Daemons) -> AsyncIterator[Maker]:
    async def resolve(image: str, tenant: str) -> None:
        return None

    async with server.cache() as cache:
        complaints = Complaints(server.as_cluster, cache)
        yield Maker(SETTINGS, server.as_cluster, cache, KEY, daemons.greet, resolve, complaints)


async def test_an_error_is_told_once_nothing_is_left(server: Server, daemons: Daemons, maker: Maker) -> None:
    daemons.error = Unavailable("no endpoint of the API server is reached from here", reason="no_witness")
    with pytest.raises(Unavailable, match="no endpoint"):
        await maker.create(SPEC, "key")
    assert not server.pods
    daemons.error = None
    pod, _ = await maker.create(SPEC, "key")  # as a client repeats a 503, at once and under the same key
    assert (deaths.classify(pod), server.made) == (None, 2)


async def test_what_gives_way_to_a_quota_has_its_key_again(
    server: Server, daemons: Daemons, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "_TICK", 0.05)
    daemons.answers, maker.leaving = False, True  # a service that stops leaves what is cancelled, and only that
    server.telling = False
    await server.create("/pods", body("another replica's", second=0))
    server.telling = True
    with pytest.raises(QuotaExceeded):
        await maker.create(SPEC, "key", 1)
    assert list(server.pods) == [identity("another replica's").name]
    daemons.answers = True
    pod, _ = await maker.create(SPEC, "key", 2)
    assert deaths.classify(pod) is None


async def test_a_key_that_was_left_is_made_anew_once_its_pod_is_gone(
    server: Server, daemons: Daemons, maker: Maker
) -> None:
    """Nobody waits for the end of what is cancelled, and the same key may come to any replica meanwhile."""
    daemons.answers = False
    making = asyncio.ensure_future(maker.create(SPEC, "key"))
    await until(lambda: bool(server.pods))
    making.cancel()
    await asyncio.wait([making])
    assert server.graces == [deaths.UNDONE_GRACE]
    daemons.answers = True
    pod, who = await maker.create(SPEC, "key")
    assert (deaths.classify(pod), server.made) == (None, 2)
    assert who.id in str(pod)


async def test_a_pod_that_does_not_go_is_waited_for_no_longer_than_a_create_takes(
    server: Server, daemons: Daemons, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creating, "Patience", lambda window, **more: patience(0.3, **more))
    server.lasts = 60.0
    await server.create("/pods", body("key"))
    await server.delete(f"/pods/{identity('key').name}", grace=deaths.UNDONE_GRACE)
    with pytest.raises(Unavailable) as caught:
        await maker.create(SPEC, "key")
    assert caught.value.reason == "node"


patience = creating.Patience


@pytest.mark.parametrize("grace", [None, 1, 30])
async def test_what_somebody_has_deleted_is_told_so_while_its_pod_is_there(
    server: Server, maker: Maker, grace: int | None
) -> None:
    """By a service, by ``kubectl delete --now``, by anybody else."""
    server.lasts = 60.0
    _, who = await maker.create(SPEC, "key")
    await server.delete(f"/pods/{who.name}", grace=grace)
    pod, again = await maker.create(SPEC, "key")
    death = deaths.classify(pod)
    assert death is not None
    assert (death.reason, again) == ("deleted", who)


async def test_a_key_whose_pod_is_reaped_since_it_never_started_is_free(
    server: Server, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = body("key")
    late["metadata"]["annotations"]["orchard/create-deadline"] = "2026-01-02T03:04:05+00:00"
    await server.create("/pods", late)
    server.pods[identity("key").name]["status"] = {"phase": "Pending"}
    (reaped,) = await Reaper(server.as_cluster, KEY, Tombstones(server.as_cluster, KEY)).once()
    assert reaped.why == "never_started"
    pod, _ = await maker.create(SPEC, "key")
    assert (deaths.classify(pod), server.made) == (None, 2)


async def test_what_somebody_deletes_while_it_is_made_is_not_deleted_anew(
    server: Server, daemons: Daemons, maker: Maker
) -> None:
    """A shorter grace would tell it as what a failed create left."""
    daemons.answers = False
    making = asyncio.ensure_future(maker.create(SPEC, "key"))
    await until(lambda: bool(server.pods))
    await server.delete(f"/pods/{identity('key').name}", grace=30)
    with pytest.raises(CreateFailed, match="was deleted while it was made"):
        await making
    assert (server.graces, server.pods) == ([30], {})
