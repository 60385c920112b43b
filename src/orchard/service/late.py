"""What goes on for a while after its request was answered: one task for each key, a bounded number for each tenant."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any

_MOST = 200  # tasks of one tenant
_MOST_TENANTS = 200  # that have any


class Late:
    """Owns such tasks. Beyond the bounds the oldest is dropped: a tenant's own first."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, OrderedDict[str, asyncio.Task[None]]] = OrderedDict()
        self._ending = set[asyncio.Task[None]]()  # dropped, and not ended yet

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def start(self, tenant: str, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``work``; what goes on under the same key is dropped for it."""
        task = asyncio.create_task(work)
        own = self._tasks.setdefault(tenant, OrderedDict())
        self._tasks.move_to_end(tenant)
        before = own.pop(key, None)
        own[key] = task
        dropped = [before] if before is not None else []
        if len(own) > _MOST:
            dropped.append(own.popitem(last=False)[1])
        if len(self._tasks) > _MOST_TENANTS:
            dropped += self._tasks.popitem(last=False)[1].values()
        for each in dropped:
            self._drop(each)
        task.add_done_callback(lambda done: self._forget(tenant, key, done))

    def _drop(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    def _forget(self, tenant: str, key: str, task: asyncio.Task[None]) -> None:
        own = self._tasks.get(tenant)
        if own is not None and own.get(key) is task:
            del own[key]
            if not own:
                del self._tasks[tenant]

    async def close(self) -> None:
        """Drop all of it, and return once it has ended, with what was dropped before."""
        for task in [task for own in self._tasks.values() for task in own.values()]:
            self._drop(task)
        await asyncio.gather(*self._ending, return_exceptions=True)
