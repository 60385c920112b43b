import asyncio
import tracemalloc

import pytest

from orchard.core.errors import Conflict, Unavailable
from orchard.service.once import Once, StillRunning, scoped


class Work:
    def __init__(self) -> None:
        self.begun = 0
        self.running = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        self.running.set()
        await self.gate.wait()
        if self.error:
            raise self.error
        return self.begun


async def test_one_key_is_one_work_also_when_the_first_asker_leaves() -> None:
    once, work = Once(), Work()
    first = asyncio.create_task(once.run("k", "body", work))
    await asyncio.sleep(0)
    second = asyncio.create_task(once.run("k", "body", work))
    await asyncio.sleep(0)
    first.cancel()
    work.gate.set()
    assert await second == 1
    assert await once.run("k", "body", work) == 1
    assert await once.run(None, "body", work) == 2


async def test_another_body_under_a_key_is_a_conflict() -> None:
    once, work = Once(), Work()
    work.gate.set()
    await once.run("k", "body", work)
    with pytest.raises(Conflict):
        await once.run("k", "other", work)


async def test_what_is_kept_does_not_grow_with_what_is_asked() -> None:
    once, work = Once(), Work()
    work.gate.set()
    tracemalloc.start()
    try:
        for number in range(100):
            await once.run(f"k{number}", f"{number} {'x' * 100_000}", work)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000  # of ten million characters
    finally:
        tracemalloc.stop()
    with pytest.raises(Conflict):
        await once.run("k7", "\ud800", work)


async def test_a_failure_is_told_and_not_kept() -> None:
    once, work = Once(), Work()
    work.gate.set()
    work.error = Unavailable("no")
    with pytest.raises(Unavailable):
        await once.run("k", "body", work)
    work.error = None
    assert await once.run("k", "body", work) == 2


async def test_waiting_is_bounded_and_asking_again_joins() -> None:
    once, work = Once(), Work()
    with pytest.raises(StillRunning):
        await once.run("k", "body", work, wait=0.01)
    work.gate.set()
    assert await once.run("k", "body", work, wait=5) == 1


async def test_a_key_that_was_given_up_ends_its_work_and_never_begins_again() -> None:
    once, work = Once(), Work()
    asked = asyncio.create_task(once.run("k", "body", work))
    await work.running.wait()
    await once.undo("k")
    with pytest.raises(Conflict):
        await asked
    with pytest.raises(Conflict):
        await once.run("k", "body", work)
    assert work.begun == 1


async def test_giving_up_what_was_done_or_never_asked_is_fine() -> None:
    once, work = Once(), Work()
    work.gate.set()
    await once.run("k", "body", work)
    for key in ("k", "never"):
        await once.undo(key)
        with pytest.raises(Conflict):
            await once.run(key, "body", work)
    assert work.begun == 1


async def test_closing_waits_a_little_then_cancels() -> None:
    once, work = Once(), Work()
    asked = asyncio.create_task(once.run("k", "body", work))
    await asyncio.sleep(0)
    await once.close(0.01)
    with pytest.raises(Unavailable):
        await asked
    with pytest.raises(Unavailable):
        await once.run("other", "body", work)


def test_no_two_tenants_or_routes_share_a_key() -> None:
    assert len({scoped("a", "create", "k"), scoped("b", "create", "k"), scoped("a", "delete", "k")}) == 3
    assert scoped("a", "create", None) is None
