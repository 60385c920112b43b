"""Waiting between tries: exponential, with jitter, until a deadline."""

from __future__ import annotations

import asyncio
import random
import time


class Patience:
    """How long one call goes on trying. The clock starts with the first failure and anew after each ``reset``.

    Args:
        window: seconds of unbroken failure after which ``pause`` gives up.
        first: seconds of the first wait; each further one doubles, up to ``most``. Each is cut by up
            to a half at random.
        most: seconds of the longest wait.
    """

    def __init__(self, window: float, *, first: float = 0.03, most: float = 1.0) -> None:
        self._window, self._first, self._most = window, first, most
        self._since: float | None = None
        self._wait = first

    def reset(self) -> None:
        """Note a success: the next failure is a first one."""
        self._since, self._wait = None, self._first

    async def pause(self, error: Exception, at_least: float = 0.0) -> None:
        """Wait before the next try.

        Raises:
            Exception: ``error`` itself, once the window has passed.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        wait = max(at_least, self._wait * random.uniform(0.5, 1.0))
        if now + wait > self._since + self._window:
            raise error
        self._wait = min(self._wait * 2, self._most)
        await asyncio.sleep(wait)
