"""``OwnedSandboxes``: several sandboxes at once, all or none."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from orchard.core.errors import CreateFailed
from orchard.core.retry import Patience
from orchard.core.tasks import finish, unwrapped
from orchard.sandbox.box import Sandbox

if TYPE_CHECKING:
    from orchard.sandbox.orchard import OwnedSandbox

MOST = 1000


class OwnedSandboxes:
    """The block that owns a group of sandboxes; see ``Orchard.sandboxes``."""

    def __init__(self, blocks: Callable[[int], list[OwnedSandbox]], seconds: float) -> None:
        self._blocks, self._seconds = blocks, seconds
        self._made: list[OwnedSandbox] = []

    async def __aenter__(self) -> list[Sandbox]:
        patience, tries = Patience(self._seconds, first=0.2, most=5.0), 0
        while True:
            self._made = self._blocks(tries)
            try:
                with unwrapped():
                    async with asyncio.TaskGroup() as group:
                        entering = [group.create_task(block.__aenter__()) for block in self._made]
                return [task.result() for task in entering]
            except CreateFailed as error:
                await self._leave(error)
                if error.reason != "made_way":
                    raise
                await patience.pause(error)
                tries += 1
            except BaseException as error:
                await self._leave(error)
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        made, self._made = self._made, []
        kind, trace = type(error) if error else None, error.__traceback__ if error else None

        async def leave_all() -> None:
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    for block in made:
                        group.create_task(finish(block.__aexit__(kind, error, trace)))

        await finish(leave_all())


def group_name(key: str) -> str:
    """Return the value of ``GROUP_LABEL`` on the sandboxes of the group under ``key``."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]
