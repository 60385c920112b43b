"""Waiting for what happens in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> None:
    """Return once ``holds``; raise ``TimeoutError`` if it does not within ``seconds``."""
    async with asyncio.timeout(seconds):
        while True:
            value = holds()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(0.02)
