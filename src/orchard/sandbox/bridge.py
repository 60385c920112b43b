"""How the synchronous twin runs the asynchronous code: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SyncStdin = bytes | Iterator[bytes] | None
SyncContent = bytes | str | Path | Iterator[bytes]
_END = object()


class _LoopThread:
    """A loop that runs in a daemon thread until ``stop``."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orchard-sync", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self.loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stopped.wait()

    def stop(self) -> None:
        if self.pid == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stopped.set)
            if threading.current_thread() is not self._thread:
                self._thread.join()


class Bridge:
    """Runs coroutines for callers in any thread. The loop starts when first needed, anew after ``stop`` or a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns; it is cancelled if this thread is interrupted meanwhile."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Generator[T]:
        """Yield what ``items`` yields; leaving early closes it."""
        try:
            while (item := self.call(_next(items))) is not _END:
                yield item
        finally:
            if isinstance(items, AsyncGenerator):
                self.call(items.aclose())

    @contextmanager
    def block(self, block: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Enter and leave an asynchronous block."""
        value = self.call(_enter(block))
        try:
            yield value
        except BaseException as error:  # whatever the block raised is the asynchronous block's to judge
            if not self.call(_leave(block, error)):
                raise
        else:
            self.call(_leave(block, None))

    def stop(self) -> None:
        """End the loop and its thread; a later call starts another."""
        with self._lock:
            if self._thread is not None and self._end is not None:
                self._end.detach()
                self._thread.stop()
            self._thread = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._thread is None or self._thread.pid != os.getpid():
                self._thread = _LoopThread()
                self._end = weakref.finalize(self, self._thread.stop)
                self._end.atexit = False
            return self._thread.loop


async def _next(items: AsyncIterator[T]) -> T | Any:
    return await anext(items, _END)


async def _enter(block: AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _leave(block: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool | None:
    return await block.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)


def feed(value: Any) -> Any:
    """Return an iterator of bytes as an asynchronous one, advanced in a thread; anything else as it is."""
    return _threaded(value) if isinstance(value, Iterator) else value  # pyright: ignore[reportUnknownArgumentType]


async def _threaded(items: Iterator[bytes]) -> AsyncGenerator[bytes]:
    while (item := await asyncio.to_thread(next, items, _END)) is not _END:
        yield item  # pyright: ignore[reportReturnType]
