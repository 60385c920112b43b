"""Commands whose output is passed on as it comes, byte for byte, and whose exit code becomes ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from orchard.cli import console, terminal
from orchard.core.errors import CommandNotStarted, InvalidArgument, OrchardError, text_of
from orchard.core.tasks import finish
from orchard.sandbox.box import Sandbox
from orchard.sandbox.commands import CommandOptions, Output, ProcessStatus
from orchard.sandbox.orchard import Orchard, SandboxOptions
from orchard.sandbox.process import Process

TIMED_OUT, FAILED, NOT_EXECUTABLE, NO_PROGRAM = 124, 125, 126, 127
_READ = 1 << 16
_KILL_BOUND = 10.0  # seconds that an interrupted exec waits for its command's end


def exit_with(work: Coroutine[Any, Any, int]) -> None:
    """Run ``work`` and exit with the code it returns; an error of Orchard's own is 125, 126 or 127."""
    try:
        code = console.run_async(work)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush does not raise again
        sys.exit(128 + signal.SIGPIPE)
    except InvalidArgument:
        raise
    except OrchardError as error:
        if console.debugging():
            raise
        console.show_error(error)
        sys.exit(_failure_code(error))
    except OSError as error:
        if console.debugging():
            raise
        console.show_os_error(error)
        sys.exit(FAILED)
    sys.exit(code)


def _failure_code(error: OrchardError) -> int:
    if not isinstance(error, CommandNotStarted):
        return FAILED
    if error.reason in ("program_not_found", "no_shell"):
        return NO_PROGRAM
    return NOT_EXECUTABLE if error.reason in ("permission", "not_executable") else FAILED


async def run_once(
    url: str | None, image: str, options: SandboxOptions, argv: list[str], timeout: float | None, how: CommandOptions,
    stdin: bool,
) -> int:  # fmt: skip
    """Run ``argv`` in a fresh sandbox that ends with it; return its exit code."""
    async with Orchard(url) as orchard:
        with console.working(f"making a sandbox of {image}"):
            owned = orchard.sandbox(image, **options)
            box = await owned.__aenter__()
        try:
            process = await box.start(argv, timeout=timeout, stdin=stdin, **how)
            return await _attended(process, stdin=stdin, on_terminal="pty" in how)
        finally:
            await finish(owned.__aexit__(None, None, None))


async def run_in(
    url: str | None, sandbox: str, argv: list[str], timeout: float | None, options: CommandOptions, *,
    stdin: bool, detach: bool,
) -> int:  # fmt: skip
    """Run ``argv`` in a sandbox; return its exit code. Interrupted, it ends the command."""
    async with Orchard(url) as orchard:
        box = await orchard.attach(sandbox)
        process = await box.start(argv, timeout=timeout, stdin=stdin, **options)
        if detach:
            console.out(process.id)
            return 0
        try:
            return await _attended(process, stdin=stdin, on_terminal="pty" in options)
        except OrchardError:
            raise
        except BaseException:  # interrupted, or its output cannot be passed on: nobody waits for it any more
            await finish(_kill(process))
            raise


async def _kill(process: Process) -> None:
    try:
        async with asyncio.timeout(_KILL_BOUND):
            await process.kill()
    except (OrchardError, TimeoutError) as error:
        console.say(f"the command may still run: {text_of(error)}")


async def _attended(process: Process, *, stdin: bool, on_terminal: bool) -> int:
    async with AsyncExitStack() as held:
        if on_terminal:
            held.enter_context(terminal.raw())
            await held.enter_async_context(_beside(terminal.follow_size(process)))
        if stdin:
            await held.enter_async_context(_beside(_feed(process)))
        await _pass_on(process.events())
    return exit_code(process.status)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Do ``work`` while the body runs; the command's end, and what it was, outrank what became of it."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        _ = task.cancelled() or task.exception()


async def _pass_on(events: AsyncGenerator[Output]) -> None:
    async with aclosing(events):
        async for event in events:
            if event.lost:
                console.say(f"[{event.lost} bytes of {event.stream} are no longer kept]")
            file = sys.stdout if event.stream == "stdout" else sys.stderr
            await asyncio.to_thread(_write, file.fileno(), event.data)  # a slow reader must not stop the lease


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def exit_code(status: ProcessStatus) -> int:
    """Return what a shell would say of that end."""
    if status.timed_out:
        console.say("the command timed out")
        return TIMED_OUT
    if status.oom_killed:
        console.say("the command was killed: out of memory")
    if status.exit_code is not None:
        return status.exit_code
    number = getattr(signal, f"SIG{status.signal}", None)
    return 128 + int(number) if number is not None else FAILED


async def _feed(process: Process) -> None:
    async for data in _stdin():
        await process.send(data)
    await process.close_stdin()


async def _stdin() -> AsyncIterator[bytes]:
    """Yield this program's stdin. A daemon thread reads it, since not every kind of file can be waited for."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    room = threading.Semaphore(4)

    def read() -> None:
        while True:
            room.acquire()
            data = os.read(sys.stdin.fileno(), _READ)
            loop.call_soon_threadsafe(queue.put_nowait, data)
            if not data:
                return

    threading.Thread(target=read, daemon=True, name="orchard-stdin").start()
    while data := await queue.get():
        room.release()
        yield data


async def logs(url: str | None, sandbox: str, process_id: str, *, follow: bool) -> int:
    """Pass on what a process has written, and with ``follow`` what it will write; return 0, or its exit code."""
    async with Orchard(url) as orchard:
        box = await orchard.attach(sandbox)
        process = await box.attach(process_id)
        if follow:
            return await _attended(process, stdin=False, on_terminal=False)
        await _spooled(box, process)
        return 0


async def _spooled(box: Sandbox, process: Process) -> None:
    for name, file in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        async with aclosing(box.output(process.id, name)) as pieces:  # pyright: ignore[reportArgumentType]
            async for data in pieces:
                await asyncio.to_thread(_write, file.fileno(), data)


async def processes(url: str | None, sandbox: str) -> list[ProcessStatus]:
    """Return the status of every process that is still known."""
    async with Orchard(url) as orchard:
        return await (await orchard.attach(sandbox)).processes()
