"""Limits: lines 45 to 49 (47 stands with the files)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from orchard.core.errors import CreateFailed, InvalidArgument, OrchardError, Unsupported
from orchard.sandbox.conformance.pace import in_time
from orchard.sandbox.conformance.suite import Context, check, expect, expect_error
from orchard.sandbox.types import State

_TOLD_WITHIN = 10.0  # seconds
BOMB = "x = []\nwhile True: x.append(bytes([1]) * (1 << 20))"


@check(
    45,
    "a memory bomb ends that command with the reason, and the daemon answers the next",
    feature="memory",
    tools=("python3",),
)
async def _memory_bomb(ctx: Context) -> None:
    async with ctx.box(memory=128 << 20) as box:
        result = await box.run(["python3", "-c", BOMB], timeout=60)
        expect(result.oom_killed and not result.timed_out, f"not told as out of memory: {result}")
        expect(result.signal == "KILL", f"ended by {result.signal}, exit code {result.exit_code}")
        after = await box.run("echo next")
        expect(after.stdout == b"next\n" and not after.oom_killed, f"the next command: {after}")


@check(
    45,
    "memory that a shell's child takes is told on the command as well",
    feature="memory",
    also=("oom-of-children",),
    tools=("python3",),
)
async def _memory_child(ctx: Context) -> None:
    async with ctx.box(memory=128 << 20) as box:
        result = await box.run(f"python3 -c '{BOMB}'; echo after", timeout=60)
        expect(result.oom_killed, f"a child died of memory and nobody says so: {result}")


@check(
    45,
    "a fork bomb ends with its command, and the daemon answers the next",
    feature="memory",
    also=("pids",),
    alone=True,
)
async def _fork_bomb(ctx: Context) -> None:
    async with ctx.box(pids=100, memory=512 << 20) as box:
        result = await box.run("{ f() { f | f & }; f; } 2>/dev/null & exec sleep 100", timeout=3)
        expect(result.timed_out, f"saw {result}")
        after = await box.run("echo next", timeout=30)
        expect(after.stdout == b"next\n", f"the next command: {after} {after.stderr!r}")


@check(45, "while a bomb fills every slot the daemon still answers", feature="memory", also=("pids",))
async def _answers_meanwhile(ctx: Context) -> None:
    async with ctx.box(pids=64, memory=256 << 20) as box:
        bomb = await box.start("{ while :; do sleep 9 & done; } 2>/dev/null & exec sleep 100")
        await asyncio.sleep(1)
        await box.files.write("/tmp/meanwhile", b"x")
        expect(await box.files.read("/tmp/meanwhile") == b"x", "files do not work meanwhile")
        expect(await bomb.poll() is None, "the daemon answered only after the bomb")
        try:
            await box.run("true", timeout=5)  # may be refused for want of a slot, in words
        except OrchardError as error:
            expect(error.reason == "resources", f"saw {error}")
        await bomb.kill()  # which returns once nothing of it is left
        expect((await box.run("echo after")).stdout == b"after\n", "the daemon does not answer afterwards")


@check(46, "a sandbox of one CPU says so", feature="cpu", also=("cpu-count",), tools=("python3",))
async def _cpu_count(ctx: Context) -> None:
    async with ctx.box(cpu=1) as box:
        result = await box.run(
            "nproc; python3 -c 'import os; print(len(os.sched_getaffinity(0)), os.cpu_count())'; echo $ORCHARD_CPUS"
        )
        words = result.text.split()
        expect(words[0] == words[1] == "1", f"nproc and the affinity say {words}")


@check(46, "statistics are the sandbox's, not the host's", feature="memory", also=("pids",))
async def _statistics(ctx: Context) -> None:
    async with ctx.box(memory=256 << 20, pids=77) as box:
        await box.run("head -c 200000000 /dev/zero | tail -c 1 >/dev/null")  # many ticks: some clocks count in those
        stats = await box.stats()
        expect(stats["memory_limit_bytes"] == 256 << 20, f"memory limit {stats}")
        expect(stats["pids_limit"] == 77, f"pids limit {stats}")
        expect(0 < (stats["memory_bytes"] or 0) < 256 << 20, f"memory {stats}")
        expect(0 < (stats["cpu_s"] or 0) < 30, f"cpu {stats}")


async def _refused(ctx: Context, create: Callable[[], Awaitable[object]], reason: str) -> None:
    async def once() -> tuple[float, float]:
        start = time.monotonic()
        error = await expect_error(CreateFailed, create())
        took = time.monotonic() - start
        expect(error.reason == reason, f"the reason is {error.reason}: {error}")
        return took, await ctx.timed(_made_and_deleted(ctx)) if took >= _TOLD_WITHIN else 0.0

    await in_time(once, _TOLD_WITHIN, 5.0, "the reason")


async def _made_and_deleted(ctx: Context) -> None:
    async with ctx.box():
        pass


@check(48, "an image that does not exist: the reason within 10 s")
async def _no_image(ctx: Context) -> None:
    async with ctx.registry(None) as image:
        await _refused(ctx, lambda: ctx.orchard.create(image, ttl=60), "image_not_found")


@check(48, "a private registry: the reason within 10 s")
async def _private_image(ctx: Context) -> None:
    async with ctx.registry(None, private=True) as image:
        await _refused(ctx, lambda: ctx.orchard.create(image, ttl=60), "image_auth")


@check(48, "another architecture: the reason within 10 s")
async def _other_architecture(ctx: Context) -> None:
    foreign = ctx.special("foreign")
    await _refused(ctx, lambda: ctx.orchard.create(foreign, ttl=60), "wrong_arch")


@check(48, "more CPUs than any machine has: the reason within 10 s")
async def _too_large(ctx: Context) -> None:
    await _refused(ctx, lambda: ctx.orchard.create(ctx.image, cpu=10000, ttl=60), "unschedulable")
    for wrong in (0, -1, float("nan"), float("inf"), "2"):
        await expect_error(InvalidArgument, ctx.orchard.create(ctx.image, cpu=wrong), field="cpu")  # type: ignore[arg-type]


@check(49, "pulling shows as pulling, and the ready clock starts after it")
async def _pulling(ctx: Context) -> None:
    async with ctx.registry("busybox", delay=8) as image:
        label = {"orchard.probe": ctx.new_key()}
        creating = asyncio.ensure_future(ctx.orchard.create(image, ttl=60, create_timeout=7, labels=label))
        states: set[State] = set()
        while not creating.done():
            states |= {info.state for info in await ctx.orchard.list(label)}
            await asyncio.sleep(0.1)
        box = await creating
        await ctx.orchard.delete(box.id)
        expect(State.PULLING in states, f"states seen: {states}")


@check(49, "what the backend cannot do is refused by name")
async def _unsupported(ctx: Context) -> None:
    for feature in (await ctx.orchard.capabilities()).exceptions:
        if feature == "network=open":
            error = await expect_error(Unsupported, ctx.orchard.create(ctx.image, network="open", ttl=60))
            expect("open" in str(error), f"the error does not name it: {error}")
