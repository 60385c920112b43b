"""Work that goes on after an answer: bounded, whatever is asked for."""

import asyncio

from tests.support.waiting import until

from orchard.service.late import Late


async def test_a_key_has_one_task_and_a_tenant_two_hundred() -> None:
    late, begun, dropped = Late(), list[str](), list[str]()

    async def work(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            dropped.append(name)
            raise

    async def start(tenant: str, key: str, name: str) -> None:
        late.start(tenant, key, work(name))
        await asyncio.sleep(0)

    await start("other", "key", "another's")
    await start("one", "key", "first")
    await start("one", "key", "again")
    await asyncio.sleep(0)
    assert (len(late), dropped) == (2, ["first"])
    for number in range(200):
        await start("one", f"key-{number}", str(number))
    await asyncio.sleep(0)
    assert (len(late), dropped) == (201, ["first", "again"])
    for number in range(300):
        await start(f"tenant-{number}", "key", f"of {number}")
    await asyncio.sleep(0)
    assert len(late) == 200
    await late.close()
    assert len(late) == 0
    assert sorted(begun) == sorted(dropped)


async def test_what_has_ended_is_forgotten() -> None:
    late = Late()
    late.start("one", "key", asyncio.sleep(0))
    await until(lambda: len(late) == 0)


async def test_all_has_ended_after_the_close_also_what_was_dropped_before() -> None:
    late, ended = Late(), list[str]()

    async def work(name: str, rounds: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(rounds):  # it has something to put away
                await asyncio.sleep(0)
            ended.append(name)

    late.start("one", "key", work("first", 20))
    await asyncio.sleep(0)
    late.start("one", "key", work("second", 0))
    await asyncio.sleep(0)
    await late.close()
    assert (ended, len(late)) == (["second", "first"], 0)
