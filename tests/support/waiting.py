"""Waiting for what happens in another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

PATIENT = (1.0, 4.0, 16.0, 64.0)
"""Seconds that something is given, one after another: more where a slow machine needs it; a fault shows in each."""


_REST = 3  # times what a look took
LONGEST_REST = 2.0  # seconds


def rest(took: float, least: float, most: float = LONGEST_REST) -> float:
    """Return for how many seconds to rest from a look that took so many.

    To look may be to start a program, and who waits would take the processors from what he waits for.
    """
    return min(max(least, _REST * took), most)


async def until(
    holds: Callable[[], bool | Awaitable[bool]], seconds: float = 180.0, most: float = LONGEST_REST
) -> None:
    """Return once ``holds``; raise ``TimeoutError`` if it does not within ``seconds``.

    Between two looks are ``most`` seconds at most: few for what does not last.
    """
    async with asyncio.timeout(seconds):
        while True:
            start = time.monotonic()
            value = holds()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(rest(time.monotonic() - start, 0.02, most))


async def cancelled_after(steps: int, work: Coroutine[Any, Any, None]) -> None:
    """Cancel ``work`` after so many turns of the loop: one after another, each place in which it may be cancelled."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
