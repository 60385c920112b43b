"""The owner's renewals get through whatever else the owner does."""

import asyncio

import pytest
from tests.support.waiting import until

from orchard.sandbox import Sandbox
from orchard.sandbox.lease import Keeper


async def test_commands_do_not_hold_up_a_renewal(box: Sandbox) -> None:
    ordinary = await box.transport._sessions.get(box.transport._base)
    assert ordinary.connector is not None
    ordinary.connector._limit = 1  # as if a thousand commands were before every other call
    running = asyncio.ensure_future(box.run("sleep 30"))
    await until(lambda: bool(ordinary.connector and ordinary.connector._acquired))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(box.health(), 0.2)
    await asyncio.wait_for(box.renew(), 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Hanging:
    """Its first renewal never ends."""

    id = "sb-hanging"

    def __init__(self) -> None:
        self.begun: list[float] = []

    async def renew(self) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        if len(self.begun) == 1:
            await asyncio.Event().wait()


async def test_a_renewal_that_hangs_is_tried_again_before_the_next_is_due() -> None:
    keeper, box = Keeper(2.0), Hanging()
    keeper.add(box)
    await until(lambda: len(box.begun) >= 3)
    keeper.drop(box)
    first, second, third = box.begun[:3]
    assert second - first < 2.5
    assert third - first < 4, "nor does it put off the next ones"
