"""What the cluster is asked for once in a while, for all who want it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Fresh(Generic[T]):
    """A value that is got anew after a while. Whoever comes while it is being got shares the outcome of that attempt.

    Args:
        ask: gets it.
        seconds: that it is believed.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._ask, self._seconds = ask, seconds
        self._value: T | None = None
        self._began = self._until = 0.0
        self._turn = asyncio.Lock()
        self._error: Exception | None = None
        self._failures = 0

    async def get(self, since: float = 0.0) -> T:
        """Return it, as it was asked for at the monotonic time ``since`` or later.

        Raises:
            Exception: as ``ask``; the next call asks again.
        """
        failures = self._failures
        async with self._turn:
            if self._began >= since and time.monotonic() < self._until:
                return cast("T", self._value)
            if self._error is not None and self._failures > failures:
                raise self._error
            began = time.monotonic()
            try:
                self._value = await self._ask()
            except Exception as error:
                self._error, self._failures = error, self._failures + 1
                raise
            self._error, self._began, self._until = None, began, time.monotonic() + self._seconds
            return self._value
