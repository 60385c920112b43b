"""Small promises about asyncio tasks that the standard library does not make."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    ``work`` must bound its own time.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # noqa: BLE001 - the task keeps it; raised by result() below
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation outranks it
        raise cancelled
    return task.result()


async def settled(work: asyncio.Future[Any]) -> None:
    """Wait for the end of ``work``, whatever it is."""
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


async def cancel(*works: asyncio.Future[Any]) -> None:
    """Cancel each, and wait for its end, whatever it is."""
    for work in works:
        work.cancel()
    for work in works:
        await settled(work)


@contextmanager
def unwrapped() -> Generator[None]:
    """Let a task group's only error, or its first, come out as itself rather than in an ``ExceptionGroup``."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(cast("BaseExceptionGroup[BaseException]", error)) if isinstance(error, BaseExceptionGroup) else error
