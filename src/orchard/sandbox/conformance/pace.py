"""Bounds in seconds that a slow machine does not break: bare work of the same kind is timed beside what is probed."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from orchard.sandbox.conformance.context import Context, NotHeld

TRIES = 3
"""A machine is disturbed for a moment; a backend that is slow is so every time."""
_TICK = 0.05  # seconds
_SERVER = """
import http.server
class Bare(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
    def log_message(self, *words):
        pass
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bare) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
"""


async def in_time(probe: Callable[[], Awaitable[tuple[float, float]]], seconds: float, times: float, what: str) -> None:
    """Return once the probed work is quick enough in one of a few tries.

    Args:
        probe: returns the seconds that the work took, and those that bare work took at that moment.
        seconds: enough at any time: the promise, for a machine that is not overloaded.
        times: enough too: so many times as long as the bare work.
        what: the work, for the report.

    Raises:
        NotHeld: it never was; with what every try took.
    """
    seen: list[str] = []
    for _ in range(TRIES):
        took, bare = await probe()
        if took < max(seconds, times * bare):
            return
        seen.append(f"{took:.2f} s, and bare work {bare:.3f} s")
    raise NotHeld(f"{what} took {'; '.join(seen)}")


@asynccontextmanager
async def waits() -> AsyncGenerator[Callable[[], tuple[float, float]]]:
    """How late the ticks of a coroutine were in the block at most, and those of a thread that does nothing else."""
    over = threading.Event()
    worst = {"coroutine": 0.0, "thread": 0.0}

    def late(who: str, due: float) -> None:
        worst[who] = max(worst[who], time.monotonic() - due)

    def tick_beside() -> None:
        due = time.monotonic() + _TICK
        while not over.wait(_TICK):
            late("thread", due)
            due = time.monotonic() + _TICK

    async def tick() -> None:
        while True:
            due = time.monotonic() + _TICK
            await asyncio.sleep(_TICK)
            late("coroutine", due)

    ticking, beside = asyncio.ensure_future(tick()), asyncio.ensure_future(asyncio.to_thread(tick_beside))
    try:
        yield lambda: (worst["coroutine"], worst["thread"])
    finally:
        over.set()
        ticking.cancel()
        await asyncio.gather(ticking, beside, return_exceptions=True)


def bare_copy(source: Path, target: Path) -> None:
    """Carry a folder of files into another one as a tar in memory: the least that an upload or a download does."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in source.iterdir():
            tar.add(path, path.name)
    packed.seek(0)
    target.mkdir()
    with tarfile.open(fileobj=packed) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            (target / entry.name).write_bytes(content.read() if content else b"")
    shutil.rmtree(target)


@asynccontextmanager
async def bare_server(ctx: Context) -> AsyncGenerator[str]:
    """The URL of another process that answers every request at once, by nothing but the standard library."""
    process = await ctx.python(_SERVER)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.communicate()
