"""The owner's heartbeat: one task per event loop renews what that loop owns."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from orchard.core.errors import NotFound, OrchardError, SandboxGone, text_of
from orchard.sandbox.types import OWNER_RENEW

log = logging.getLogger(__name__)


_TRIES = 2
"""In each period, each with its part of the time."""


class Renewable(Protocol):
    """What the keeper needs of a sandbox."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    async def renew(self) -> None:
        """Tell it that its owner lives."""
        ...


class Keeper:
    """Renews the leases of the owned. Belongs to one ``Orchard``; its tasks end with the last thing they renew."""

    def __init__(self, every: float = OWNER_RENEW) -> None:
        self._every = every
        self._owned: dict[asyncio.AbstractEventLoop, dict[str, Renewable]] = {}
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    def add(self, box: Renewable) -> None:
        """Begin to renew ``box`` from the running loop."""
        loop = asyncio.get_running_loop()
        self._owned.setdefault(loop, {})[box.id] = box
        task = self._tasks.get(loop)
        if task is None or task.done():
            self._tasks[loop] = loop.create_task(self._renew(loop), name="orchard-lease")

    def drop(self, box: Renewable) -> None:
        """Stop renewing ``box``."""
        loop = asyncio.get_running_loop()
        owned = self._owned.get(loop, {})
        owned.pop(box.id, None)
        if not owned:
            self._owned.pop(loop, None)
            if task := self._tasks.pop(loop, None):
                task.cancel()

    async def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time()
        while True:
            due = max(due + self._every, loop.time())  # slow renewals do not put off the next ones
            await asyncio.sleep(due - loop.time())
            boxes = list(self._owned.get(loop, {}).values())
            async with asyncio.TaskGroup() as group:
                for box in boxes:
                    group.create_task(self._renew_one(box))

    async def _renew_one(self, box: Renewable) -> None:
        for _ in range(_TRIES):  # a request that hangs takes a part of the time between two renewals, not all of it
            try:
                async with asyncio.timeout(self._every / _TRIES):
                    return await box.renew()
            except (SandboxGone, NotFound):
                self._owned.get(asyncio.get_running_loop(), {}).pop(box.id, None)  # its next user learns the reason
                return
            except (OrchardError, TimeoutError) as error:
                log.warning("the lease of sandbox %s was not renewed, trying again: %s", box.id, text_of(error))
