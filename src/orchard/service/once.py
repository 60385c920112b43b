"""Creates and other one-time work, owned by the service: a client that leaves and asks again joins its own work."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from orchard.core.errors import Conflict, Unavailable
from orchard.core.ids import check_key

T = TypeVar("T")
_KEPT = 10_000  # answers kept under their keys
_FOR = 3600.0  # seconds for which they are kept


class StillRunning(Exception):
    """The work goes on; whoever asks again under its key joins it."""


@dataclass
class _Work:
    body: bytes
    """Its hash: of what is kept for an hour, nothing may be as long as a caller likes."""
    task: asyncio.Task[Any]
    at: float


class Once:
    """Runs each key's work once while its answer is kept; a failure is not kept, so that the key may be tried again.

    Across a restart of the service nothing here is needed: creates are kept under their keys by the backend, and
    deleting or extending twice is harmless.
    """

    def __init__(self) -> None:
        self._works: OrderedDict[str, _Work] = OrderedDict()
        self._undone: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(
        self, key: str | None, body: str, work: Callable[[], Coroutine[Any, Any, T]], *, wait: float | None = None
    ) -> T:
        """Return the result of ``work``, or of the same key's earlier one. It goes on when the caller is cancelled.

        Args:
            key: scoped by the caller's tenant and the route; None: no key, always new work.
            body: what is asked, as text.
            work: does it. Its result is kept as long as its key, so it is to be short.
            wait: seconds to wait at most; None: until it is done.

        Raises:
            Conflict: another body under the same key, or the key was given up.
            Unavailable: the service is stopping.
            StillRunning: ``wait`` has passed; asking again under the key joins it.
        """
        if self._closed:
            raise _stopping()
        if key in self._undone:
            raise Conflict("the request under this Idempotency-Key was given up", hint="use a new key")
        known = self._works.get(key) if key else None
        asked = hashlib.sha256(body.encode("utf-8", "surrogatepass")).digest()
        if known is None:
            known = _Work(asked, self._start(work()), time.monotonic())
            if key:
                self._keep(key, known)
        elif known.body != asked:
            raise Conflict("another request was sent under this Idempotency-Key", hint="use a new key")
        # Not the task itself is awaited: the caller's cancellation must not reach it.
        await asyncio.wait([known.task], timeout=wait)
        if not known.task.done():
            raise StillRunning
        if known.task.cancelled() and self._closed:
            raise _stopping()
        if known.task.cancelled():
            raise Conflict("the request under this Idempotency-Key was given up", hint="use a new key")
        return cast("T", known.task.result())

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep(self, key: str, work: _Work) -> None:
        self._works[key] = work

        def forget(task: asyncio.Task[Any]) -> None:
            if (task.cancelled() or task.exception() is not None) and self._works.get(key) is work:
                del self._works[key]

        work.task.add_done_callback(forget)
        old = time.monotonic() - _FOR
        while len(self._works) > _KEPT or next(iter(self._works.values())).at < old:
            self._works.popitem(last=False)

    async def undo(self, key: str) -> None:
        """Give ``key`` up for good: cancel its work if it is under way; it never begins again."""
        self._undone[key] = None
        if len(self._undone) > _KEPT:
            self._undone.popitem(last=False)
        work = self._works.pop(key, None)
        if work is not None:
            work.task.cancel()
            await asyncio.wait([work.task])

    async def close(self, grace: float) -> None:
        """Take no more work; wait ``grace`` seconds for what is under way, then cancel it."""
        self._closed = True
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=grace)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def _stopping() -> Unavailable:
    return Unavailable("the service is stopping", hint="try again under the same key")


def scoped(tenant: str, route: str, key: str | None) -> str | None:
    """Return a client's Idempotency-Key as one of our own: no two tenants or routes ever share one.

    Raises:
        InvalidArgument: not 1-128 of ``[A-Za-z0-9._-]``.
    """
    if key is None:
        return None
    check_key(key, "Idempotency-Key")
    return hashlib.sha256("\0".join((tenant, route, key)).encode()).hexdigest()[:48]
