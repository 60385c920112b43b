"""Waiting for what happens in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

PATIENT = (1.0, 4.0, 16.0, 64.0)
"""Seconds that something is given, one after another: more where a slow machine needs it; a fault shows in each."""


async def until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 180.0) -> None:
    """Return once ``holds``; raise ``TimeoutError`` if it does not within ``seconds``."""
    async with asyncio.timeout(seconds):
        while True:
            value = holds()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(0.02)


async def cancelled_after(steps: int, work: Coroutine[Any, Any, None]) -> None:
    """Cancel ``work`` after so many turns of the loop: one after another, each place in which it may be cancelled."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
