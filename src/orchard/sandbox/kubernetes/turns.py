"""Who comes next: a bounded number at once, tenants in turn, each tenant's own in the order of asking."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager


class Turns:
    """A semaphore whose waiting tenants are served in turn, so that a thousand of one do not hold up another's one."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return sum(not each.done() for queue in self._queues.values() for each in queue)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[Callable[[], None]]:
        """Wait for a turn and hold it for the length of the block, or until what is yielded is called."""
        await self._take(tenant)
        held = True

        def end() -> None:
            nonlocal held
            if held:
                held = False
                self._give()

        try:
            yield end
        finally:
            end()

    async def _take(self, tenant: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        mine = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._give()  # it was handed over in the very moment
            raise

    def _give(self) -> None:
        while self._queues:
            tenant, queue = self._queues.popitem(last=False)
            following = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # to the end of the round
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
