"""Commands and their ends: lines 1 to 16."""

from __future__ import annotations

import asyncio
import math
import time

from orchard.core.errors import InvalidArgument, SandboxGone
from orchard.sandbox.box import Sandbox
from orchard.sandbox.conformance.faulty import KINDS
from orchard.sandbox.conformance.pace import in_time
from orchard.sandbox.conformance.suite import Context, check, eventually, expect, expect_error, lives


@check(1, "a time-out ends the command in time and says so")
async def _timeout_in_time(ctx: Context) -> None:
    async with ctx.box() as box:

        async def once() -> tuple[float, float]:
            late = await _late(box, "sleep 5; echo hello", 2)
            expect(await lives(box, "sleep 5") == 0, "sleep 5 still lives")
            return late, await ctx.timed(box.run("true"))

        await in_time(once, 0.5, 5.0, "the answer after a time-out")


async def _late(box: Sandbox, command: str, timeout: float) -> float:
    """Return the seconds from the end of a command's time to its answer."""
    start = time.monotonic()
    result = await box.run(command, timeout=timeout)
    took = time.monotonic() - start
    expect(result.timed_out and not result.ok, f"{command}: not marked as timed out: {result}")
    expect(not result.stdout, f"{command}: the command went on")
    return took - timeout


@check(1, "output written before a time-out is kept")
async def _timeout_keeps_output(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("echo before; echo wrong >&2; sleep 30", timeout=1)
        expect(result.timed_out, f"not timed out: {result}")
        expect((result.stdout, result.stderr) == (b"before\n", b"wrong\n"), f"lost output: {result.stdout!r}")


@check(2, "background children end with a timed out command, and the next command works")
async def _timeout_background(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("sleep 71 & sleep 72", timeout=1)
        expect(result.timed_out, f"not timed out: {result}")
        expect(await lives(box, "sleep 71") + await lives(box, "sleep 72") == 0, "a sleep still lives")
        expect((await box.run("echo next")).stdout == b"next\n", "the next command does not work")


@check(3, "children that fled by setsid, a double fork, or by ignoring TERM end with it")
async def _timeout_fled(ctx: Context) -> None:
    fled = {
        "setsid": "setsid sleep 301 & wait",
        "double fork": "(setsid sh -c 'sleep 301 & sleep 301 & wait' &) ; sleep 300",
        "nohup": "nohup setsid nohup sleep 301 >/dev/null 2>&1 & sleep 300",
        "ignores TERM": "trap '' TERM INT HUP QUIT; (sleep 301; sleep 301) & sleep 301; sleep 301",
        "no environment": "env -i setsid sh -c 'exec sleep 301' & wait",
    }
    async with ctx.box() as box:
        for way, command in fled.items():

            async def once(way: str = way, command: str = command) -> tuple[float, float]:
                late = await _late(box, command, 1)
                expect(await lives(box, "sleep 301") == 0, f"{way}: a child still lives")
                return late, await ctx.timed(box.run("true"))

            await in_time(once, 1.5, 5.0, f"{way}: the answer after a time-out")


@check(3, "killing a process ends its whole tree")
async def _kill_tree(ctx: Context) -> None:
    async with ctx.box() as box:
        process = await box.start("setsid sleep 302 & (setsid sleep 302 &); sleep 302")
        await eventually(lambda: _at_least(box, "sleep 302", 3), 10, "the tree did not come up")
        await process.kill()
        result = await process.wait(10)
        expect(result.cancelled and result.signal == "KILL", f"not marked as ended by request: {result}")
        expect(await lives(box, "sleep 302") == 0, "part of the tree still lives")


async def _at_least(box: Sandbox, command: str, count: int) -> bool:
    return await lives(box, command) >= count


@check(4, "a background child does not hold the answer")
async def _background_does_not_hold(ctx: Context) -> None:
    async with ctx.box() as box:
        start = time.monotonic()
        result = await box.run("sleep 300 & echo started")
        expect(time.monotonic() - start < 15, f"the answer took {time.monotonic() - start:.1f} s")
        expect(result.ok and result.stdout == b"started\n", f"saw {result}: {result.stdout!r}")
        await eventually(lambda: _at_least(box, "sleep 300", 1), 10, "the background child was killed")


@check(
    5, "fifty time-outs in a row under a small pids limit leave room for the next command", feature="pids", alone=True
)
async def _fifty_timeouts(ctx: Context) -> None:
    async with ctx.box(pids=64) as box:
        for number in range(50):
            result = await box.run("sleep 61 & setsid sleep 61 & sleep 61", timeout=0.1)
            expect(result.timed_out, f"time-out {number}: {result}")
        result = await box.run("echo room")
        expect(result.stdout == b"room\n", f"the fifty-first command: {result} {result.stderr!r}")


@check(6, "stdin is closed unless given")
async def _stdin_closed(ctx: Context) -> None:
    async with ctx.box() as box:
        expect((await box.run("cat", timeout=20)).ok, "cat waits")
        expect((await box.run("read x; echo $?", timeout=20)).stdout == b"1\n", "read does not see the end")
        result = await box.run("cat >/dev/null; echo after", timeout=20)
        expect(result.stdout == b"after\n", f"saw {result.stdout!r}")


@check(6, "an interpreter that asks for input ends at once", tools=("python3",))
async def _stdin_python(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run(["python3", "-c", "input()"], timeout=30)
        expect(not result.timed_out and b"EOFError" in result.stderr, f"saw {result}: {result.stderr!r}")


@check(7, "time-outs are validated, and the error names the field")
async def _timeout_validated(ctx: Context) -> None:
    async with ctx.box() as box:
        for wrong in (-1, 0, math.nan, 1e12, "5", True):
            await expect_error(InvalidArgument, box.run("echo ran >> /tmp/ran", timeout=wrong), field="timeout")  # type: ignore[arg-type]
        expect(not await box.files.exists("/tmp/ran"), "a command ran in spite of its time-out")


@check(7, "a fraction of a second is honoured")
async def _timeout_fraction(ctx: Context) -> None:
    async with ctx.box() as box:

        async def once() -> tuple[float, float]:
            late = await _late(box, "sleep 20", 1.5)
            expect(late > -0.05, f"1.5 s became {1.5 + late:.2f} s")
            return late, await ctx.timed(box.run("true"))

        await in_time(once, 0.5, 5.0, "the answer after a time-out of 1.5 s")


@check(8, "124 and 137 are exit codes like any other")
async def _exit_124(ctx: Context) -> None:
    async with ctx.box() as box:
        for code in (0, 1, 3, 124, 125, 126, 127, 137, 143, 255):
            result = await box.run(f"exit {code}")
            expect(result.exit_code == code, f"exit {code} became {result.exit_code}")
            expect(not result.timed_out and result.signal is None and not result.oom_killed, f"exit {code}: {result}")


@check(8, "death by a signal says which")
async def _exit_signal(ctx: Context) -> None:
    async with ctx.box() as box:
        for name in ("KILL", "TERM", "SEGV", "USR1"):
            result = await box.run(f"kill -{name} $$")
            expect(result.signal == name and result.exit_code is None, f"{name} became {result}")
            expect(not result.timed_out and not result.oom_killed, f"{name}: {result}")


@check(9, "a client that vanishes wedges nothing, and another attaches at an offset")
async def _client_vanishes(ctx: Context) -> None:
    async with ctx.box() as box:
        process = await box.start("i=0; while [ $i -lt 200 ]; do echo line$i; i=$((i+1)); sleep 0.01; done; echo end")
        seen = 0
        async for event in process:
            seen = event.offset + len(event.data)
            if seen > 100:
                break  # the stream is left in the middle
        async with ctx.another() as other:
            second = await other.attach(box.id)
            again = await second.attach(process.id, stdout=seen)
            rest = b"".join([event.data async for event in again])
            result = await again.wait(10)
        whole = b"".join(b"line%d\n" % i for i in range(200)) + b"end\n"
        expect(result.exit_code == 0, f"the process did not go on: {result}")
        expect(rest == whole[seen:], f"from offset {seen}: {rest[:80]!r} …")


@check(9, "a process ends with its client where that is asked for")
async def _client_takes_process(ctx: Context) -> None:
    async with ctx.box() as box, ctx.cuttable(box) as (attached, cut):
        running = asyncio.ensure_future(attached.run("sleep 303", kill_on_disconnect=True))
        await eventually(lambda: _at_least(box, "sleep 303", 1), 10, "the command did not start")
        cut()
        await eventually(lambda: _gone(box, "sleep 303"), 30, "the process lives on")
        result = await running
        expect(result.cancelled and result.signal == "KILL", f"saw {result}")


async def _gone(box: Sandbox, command: str) -> bool:
    return await lives(box, command) == 0


@check(10, "two hundred aborted requests leave no stuck handler, descriptor or task", alone=True)  # it counts tasks
async def _aborted_requests(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.run("true")
        before = len(asyncio.all_tasks())

        async def ended() -> bool:
            return len(asyncio.all_tasks()) <= before + 2

        for number in range(200):
            task = asyncio.ensure_future(box.run("sleep 9"))
            await asyncio.sleep(number % 21 / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: _gone(box, "sleep 9"), 20, "cancelled commands live on")
        await eventually(ended, 10, f"more than the {before} tasks of before are left")
        expect((await box.run("echo ok", timeout=20)).stdout == b"ok\n", "the sandbox does not answer")
        running = [process for process in await box.processes() if process.state == "running"]
        expect(not running, f"{len(running)} processes are still running")


@check(11, "a command on a sandbox that is gone fails typed, with the reason, at once")
async def _command_after_end(ctx: Context) -> None:
    async def once() -> tuple[float, float]:
        async with ctx.box() as box:
            bare = await ctx.timed(box.run("true"))
            async with ctx.another() as other:
                await other.delete(box.id)
            took = await ctx.timed(expect_error(SandboxGone, box.run("true"), reason="deleted"))
            await expect_error(SandboxGone, box.files.read("/etc/hostname"), reason="deleted")
            return took, bare

    await in_time(once, 2.0, 5.0, "the error of a command after the end")


@check(11, "a command that runs when its sandbox ends fails typed, with the reason")
async def _command_at_end(ctx: Context) -> None:
    async def once() -> tuple[float, float]:
        async with ctx.box() as box:
            bare = await ctx.timed(box.run("true"))
            running = asyncio.ensure_future(box.run("sleep 60"))
            await eventually(lambda: _at_least(box, "sleep 60", 1), 10, "the command did not start")
            async with ctx.another() as other:
                await other.delete(box.id)
            return await ctx.timed(expect_error(SandboxGone, running, reason="deleted")), bare

    await in_time(once, 2.0, 5.0, "the error of a command at the end")


@check(12, "a background process outlives the default time-out of foreground commands")
async def _background_has_no_timeout(ctx: Context) -> None:
    async with ctx.box() as box:
        process = await box.start("sleep 304")
        await eventually(lambda: _at_least(box, "sleep 304", 1), 10, "the background process did not start")
        await box.run("sleep 30", timeout=0.2)
        expect(await process.poll() is None, "the background process ended with a foreground time-out")
        expect(await lives(box, "sleep 304") == 1, "the background process does not live")


@check(13, "a long git log does not hang on a pager", tools=("git",))
async def _no_pager(ctx: Context) -> None:
    commits = "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first"
    more = (
        'for i in 1 2 3 4 5; do git -c user.name=a -c user.email=a@b commit -q --allow-empty -m "$(seq 1 2000)"; done'
    )
    async with ctx.box() as box:
        made = await box.run(f"cd /tmp && {commits} && {more}", timeout=30 * ctx.patience)
        expect(made.ok, f"no repository: {made.error_text}")
        result = await box.run("git log", cwd="/tmp/r", timeout=30 * ctx.patience, output_limit=1 << 22)
        expect(result.ok and result.stdout_bytes > 50_000, f"saw {result}: {result.error_text}")


@check(13, "a program that would ask a question ends", tools=("apt-get",))
async def _no_prompt(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("apt-get install definitely-missing; apt-get upgrade; read answer </dev/tty", timeout=90)
        expect(not result.timed_out, f"hangs: {result.text}")


@check(15, "two commands run at the same time, and a server in the background blocks nobody")
async def _at_the_same_time(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.start("while :; do sleep 1; done")
        meet = "touch /tmp/meet.$0; until [ $(ls /tmp/meet.* | wc -l) = 5 ]; do sleep 0.2; done"
        results = await asyncio.gather(*(box.run(["sh", "-c", meet, str(number)], timeout=90) for number in range(5)))
        expect(all(result.ok for result in results), f"five that wait for one another did not meet: {results}")


@check(16, "the same operation id twice starts one process")
async def _same_operation(ctx: Context) -> None:
    async with ctx.box() as box:
        first = await box.run("echo x >> /tmp/f; echo ran", key="op-same")
        again = await box.run("echo x >> /tmp/f; echo ran", key="op-same")
        at_once = await asyncio.gather(
            *(box.run("echo y >> /tmp/f; sleep 0.2; echo $$", key="op-at-once") for _ in range(8))
        )
        expect(first.stdout == again.stdout == b"ran\n", f"saw {first.stdout!r} and {again.stdout!r}")
        expect(len({result.stdout for result in at_once}) == 1, "the same id gave different processes")
        expect(await box.files.read("/tmp/f") == b"x\ny\n", f"ran more than once: {await box.files.read('/tmp/f')!r}")


@check(16, "under a proxy that cuts, delays and answers 502, a command runs exactly once", alone=True)
async def _faulty_wire(ctx: Context) -> None:
    async with ctx.box() as box, ctx.faulty(box) as (faulty, proxy):
        for number in range(60):
            result = await faulty.run(f"echo {number} >> /tmp/f; echo done", timeout=20)
            expect(result.ok and result.stdout == b"done\n", f"command {number}: {result} {result.stdout!r}")
        lines = (await box.files.read("/tmp/f")).split()
        expect(lines == [b"%d" % number for number in range(60)], f"{len(lines)} lines for 60 commands")
        spared = set(KINDS) - set(proxy.injected)
        expect(not spared, f"the commands were to meet every fault, and not be spared {spared}")
