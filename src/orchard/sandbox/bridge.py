"""How the synchronous twin runs the asynchronous code: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SyncStdin = bytes | Iterator[bytes] | None
SyncContent = bytes | str | Path | Iterator[bytes]
_END = object()
_GRACE = 15.0  # seconds that an interrupted call waits for what its work does when cancelled


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


class _Running(Generic[T]):
    """Work for the loop's thread. Its end is the end of what it does when cancelled, too."""

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop, self._ended = work, loop, threading.Event()
        self._task: asyncio.Task[T] | None = None
        self.succeeded = False

    def result(self) -> T:
        """Start it and return what it returns; if interrupted, cancel it and wait, unless interrupted again."""
        try:
            self._loop.call_soon_threadsafe(self._start)
            self._ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(self._cancel)
            self._ended.wait(_GRACE)
            raise
        if self._task is None or self._task.cancelled():
            raise CancelledError
        try:
            return self._task.result()
        finally:
            del self  # else the error, by its traceback, would hold itself

    def last(self) -> None:
        """Start it as what an interrupted call still does: waited for as above, and never heard."""
        self._loop.call_soon_threadsafe(self._start)
        self._ended.wait(_GRACE)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the interrupt came before the start
            self._work.close()
            self._ended.set()

    def _end(self, task: asyncio.Task[T]) -> None:
        self.succeeded = not task.cancelled() and task.exception() is None
        self._ended.set()


class Bridge:
    """Runs coroutines for callers in any thread. The loop starts when first needed, anew after ``stop`` or a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns.

        If this thread is interrupted meanwhile, ``work`` is cancelled, and has 15 s for what it then does. Another
        interrupt ends the wait.
        """
        return _Running(work, self._loop()).result()

    def enter(self, block: AbstractAsyncContextManager[T]) -> T:
        """Enter an asynchronous block; if interrupted, it is left again, or was never entered."""
        entering = _Running(_enter(block), self._loop())
        try:
            return entering.result()
        except BaseException as error:
            if entering.succeeded:
                _Running(_leave(block, error), self._loop()).last()
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
        value = self.enter(block)
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
