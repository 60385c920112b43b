"""The owner's renewals get through whatever else the owner does."""

import asyncio
import selectors

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


class Hurried(asyncio.SelectorEventLoop):
    """Its clock is nobody else's: where nothing is left to do, it is at once as late as the next timer wants it."""

    def __init__(self) -> None:
        super().__init__(_Skipping(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: Hurried) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now += timeout or 0.0
        return super().select(0)


def test_a_renewal_that_hangs_is_tried_again_before_the_next_is_due(caplog: pytest.LogCaptureFixture) -> None:
    box = Hanging()

    async def three() -> None:
        keeper = Keeper(2.0)
        keeper.add(box)
        await until(lambda: len(box.begun) >= 3)
        keeper.drop(box)

    with asyncio.Runner(loop_factory=Hurried) as runner:
        runner.run(three())
    assert box.begun == pytest.approx([2, 3, 4]), "nor does it put off the next ones"
    [told] = caplog.messages
    assert told == "the lease of sandbox sb-hanging was not renewed, trying again: TimeoutError"
