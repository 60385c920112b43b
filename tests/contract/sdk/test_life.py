"""Owning, attaching, renewing, ending."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.daemon import DaemonBackend
from tests.support.waiting import PATIENT, until

from orchard.core.errors import InvalidArgument, NotFound, Unavailable
from orchard.sandbox import Orchard, Sandbox, State
from orchard.sandbox.lease import Keeper
from orchard.sandbox.types import Endpoint, SandboxSpec


async def test_leaving_the_block_deletes_and_attaching_owns_nothing(orchard: Orchard, daemon: DaemonBackend) -> None:
    async with orchard.sandbox("host") as box:
        other = await orchard.attach(box.id)
        await other.run("true")
        await other.close()
        assert (await orchard.get(box.id)).state is State.READY
        assert [info.id for info in await orchard.list()] == [box.id]
    assert (await orchard.get(box.id)).reason == "deleted"
    await orchard.delete(box.id)
    with pytest.raises(NotFound):
        await orchard.delete("sb-never")
    with pytest.raises(InvalidArgument):
        await orchard.get("../x")


async def test_cancelling_the_block_deletes_all_the_same(orchard: Orchard, daemon: DaemonBackend) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with orchard.sandbox("host") as box:
            entered.set()
            await box.run("sleep 60")

    held = asyncio.ensure_future(hold())
    await entered.wait()
    held.cancel()
    await asyncio.sleep(0)
    held.cancel()  # impatience changes nothing
    with pytest.raises(asyncio.CancelledError):
        await held
    assert await orchard.list() == []


class Unreachable(DaemonBackend):
    """Its sandboxes are made, but how to reach them is never told: a fault, or no answer at all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fails, self.asked = False, asyncio.Event()

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        self.asked.set()
        if self.fails:
            raise Unavailable("no answer")
        return await asyncio.get_running_loop().create_future()


@pytest.fixture
async def unreachable(short_path: Path) -> AsyncIterator[Unreachable]:
    backend = Unreachable(short_path)
    yield backend
    for info in (await backend.list()).items:
        await backend.delete(info.id)


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_create_that_is_cancelled_leaves_nothing(unreachable: Unreachable, key: str | None) -> None:
    orchard = Orchard(backend=unreachable)
    making = asyncio.ensure_future(orchard.create("host", key=key))
    await unreachable.asked.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert unreachable.created == 1
    assert await orchard.list() == []


async def test_a_create_that_fails_leaves_only_what_its_key_finds_again(unreachable: Unreachable) -> None:
    orchard, unreachable.fails = Orchard(backend=unreachable), True
    with pytest.raises(Unavailable):
        await orchard.create("host")
    assert await orchard.list() == []
    with pytest.raises(Unavailable):
        await orchard.create_from(SandboxSpec("host"))
    assert await orchard.list() == []
    with pytest.raises(Unavailable):
        await orchard.create("host", key="mine")
    assert len(await orchard.list()) == 1


async def test_a_delete_that_fails_does_not_hide_why_a_sandbox_is_given_up(
    unreachable: Unreachable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(sandbox_id: str, *, wait: bool = True) -> None:
        raise NotFound("the service is another one by now")

    monkeypatch.setattr(unreachable, "delete", down)
    orchard = Orchard(backend=unreachable)
    for entering in (orchard.create("host"), orchard.sandbox("host").__aenter__()):
        unreachable.asked.clear()
        making = asyncio.ensure_future(entering)
        await unreachable.asked.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
    monkeypatch.undo()


async def test_the_owner_renews_its_lease(
    orchard: Orchard, daemon: DaemonBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchard._keeper = Keeper(0.1)
    for window in PATIENT:
        monkeypatch.setattr("orchard.sandbox.orchard.OWNER_WINDOW", window)
        async with orchard.sandbox("host") as box, orchard.sandbox("host"):
            assert (await box.lease())["heartbeat_s"] == window
            await asyncio.sleep(1.5 * window)
            if (await orchard.get(box.id)).state is State.READY:
                await _ends_without_its_owner(orchard, box)
                break
    else:
        pytest.fail("none of them was renewed in time")


async def _ends_without_its_owner(orchard: Orchard, box: Sandbox) -> None:
    assert (await box.run("echo alive")).stdout == b"alive\n"
    orchard._keeper.drop(box)

    async def gone() -> bool:
        return (await orchard.get(box.id)).state is State.GONE

    await until(gone, 200)


async def test_ttl_is_extended_up_to_its_bound(orchard: Orchard) -> None:
    async with orchard.sandbox("host", ttl=100, max_ttl=1000) as box:
        await box.extend(500)
        assert 490 < (await box.lease())["ttl_s"] <= 500
        with pytest.raises(InvalidArgument):
            await box.extend(5000)
        with pytest.raises(InvalidArgument) as caught:
            await box.extend(-1)
        assert caught.value.field == "ttl"


@pytest.mark.parametrize(
    ("field", "value"),
    [("cpu", -1), ("memory", "2 bananas"), ("ttl", 0), ("ttl", float("nan")), ("labels", {"a b": "c"}),
     ("network", "x"), ("colour", 1)],
)  # fmt: skip
async def test_options_are_checked_by_name(orchard: Orchard, field: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        orchard.sandbox("host", **{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


async def test_health_stats_and_refresh(box: Sandbox) -> None:
    assert (await box.health())["id"] == box.id
    assert "memory_bytes" in await box.stats()
    assert (await box.refresh()).state is State.READY
