"""Life: lines 37 to 44."""

from __future__ import annotations

import asyncio
import signal
from typing import cast

from orchard.core.errors import Conflict, CreateFailed, InvalidArgument, NotFound, OrchardError, SandboxGone
from orchard.sandbox.conformance.suite import Context, check, eventually, expect, expect_error
from orchard.sandbox.orchard import SandboxOptions
from orchard.sandbox.types import SandboxSpec, State

OWNER = """
import asyncio
from orchard import Orchard
async def main():
    async with Orchard() as orchard, orchard.sandbox({image!r}, labels={{"orchard.conformance": "1"}}) as box:
        await box.transport.request(lease(heartbeat_s={window}))
        print(box.id, flush=True)
        await asyncio.sleep(300)
def lease(**body):
    from orchard.sandbox.transport import Call
    return Call("POST", "/lease", json=body)
asyncio.run(main())
"""


async def _gone(ctx: Context, sandbox_id: str) -> bool:
    return (await ctx.orchard.get(sandbox_id)).state == State.GONE


@check(37, "ready means that a command works")
async def _ready(ctx: Context) -> None:
    for _ in range(3):
        async with ctx.box() as box:
            result = await box.run("echo ready", timeout=60)
            expect(result.stdout == b"ready\n", f"the first command: {result}")


@check(37, "creating with the same key twice gives one sandbox, another request under it a conflict")
async def _same_key(ctx: Context) -> None:
    key = ctx.new_key()
    boxes = await asyncio.gather(*(ctx.orchard.create(ctx.image, key=key, ttl=60) for _ in range(4)))
    try:
        expect(len({box.id for box in boxes}) == 1, f"one key made {len({box.id for box in boxes})} sandboxes")
        await expect_error(Conflict, ctx.orchard.create(ctx.image, key=key, ttl=61))
    finally:
        await ctx.orchard.delete(boxes[0].id)


@check(38, "ttl ends a sandbox, and the record still says why and when")
async def _ttl(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=4)
    running = asyncio.ensure_future(box.run("sleep 50"))
    await eventually(lambda: _gone(ctx, box.id), 25, "it lives on after its ttl")
    info = await ctx.orchard.get(box.id)
    expect(info.reason == "ttl" and info.ended_at is not None, f"the record says {info}")
    await expect_error(SandboxGone, running, reason="ttl")


@check(38, "idle ends a sandbox that nobody uses")
async def _idle(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=300, idle=3)
    await eventually(lambda: _gone(ctx, box.id), 25, "it lives on though idle")
    expect(
        (await ctx.orchard.get(box.id)).reason == "idle", f"the record says {(await ctx.orchard.get(box.id)).reason}"
    )


@check(38, "a request's time-out ends the command and not the sandbox; attaching changes no time")
async def _three_times(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=60)
    try:
        before = (await ctx.orchard.get(box.id)).expires_at
        async with ctx.another() as other:
            attached = await other.attach(box.id)
            expect((await attached.run("sleep 5", timeout=0.2)).timed_out, "no time-out")
        after = (await ctx.orchard.get(box.id)).expires_at
        expect(before == after, f"attaching moved the end from {before} to {after}")
        expect((await box.run("echo on")).stdout == b"on\n", "the attached client's end ended the sandbox")
    finally:
        await ctx.orchard.delete(box.id)


@check(38, "extending moves the end, and never beyond max_ttl")
async def _extend(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=10, max_ttl=120)
    try:
        await box.extend(60)
        await asyncio.sleep(11)
        expect((await box.run("echo on")).stdout == b"on\n", "it ended at its first ttl")
        await expect_error(InvalidArgument, box.extend(500))
    finally:
        await ctx.orchard.delete(box.id)


@check(38, "0, negative and non-numbers are refused by name")
async def _times_checked(ctx: Context) -> None:
    for field in ("ttl", "idle", "max_ttl", "create_timeout"):
        for wrong in (0, -1, float("nan"), "5", True):
            await expect_error(
                InvalidArgument, ctx.orchard.create(ctx.image, **cast("SandboxOptions", {field: wrong})), field=field
            )
    await expect_error(InvalidArgument, ctx.orchard.create(ctx.image, ttl=100, max_ttl=50), field="ttl")


@check(39, "a running command counts as activity")
async def _activity(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=120, idle=8)
    result = await box.run("sleep 14; echo done")
    expect(result.stdout == b"done\n", f"idle ended a sandbox with a running command: {result}")
    await ctx.orchard.delete(box.id)


@check(39, "reading a status does not count as activity")
async def _status_is_no_activity(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=300, idle=3)
    await eventually(lambda: _gone(ctx, box.id), 25, "asking for the status keeps it alive")
    expect((await ctx.orchard.get(box.id)).reason == "idle", "another reason than idle")


@check(40, "renewing through another client counts")
async def _renew_elsewhere(ctx: Context) -> None:
    box = await ctx.orchard.create_from(SandboxSpec(ctx.image, ttl=300, heartbeat=10))
    try:
        async with ctx.another() as other:
            attached = await other.attach(box.id)
            for _ in range(4):
                await asyncio.sleep(3)
                await attached.renew()
            expect((await attached.run("echo on")).stdout == b"on\n", "it ended in spite of renewals")
        await eventually(lambda: _gone(ctx, box.id), 25, "it lives on without renewals")
        expect((await ctx.orchard.get(box.id)).reason == "heartbeat", "another reason than heartbeat")
    finally:
        await ctx.orchard.delete(box.id)


async def _owned(ctx: Context, window: float) -> tuple[asyncio.subprocess.Process, str]:
    process = await ctx.python(OWNER.format(image=ctx.image, window=window))
    out = process.stdout
    expect(out is not None, "no output of the owner")
    line = (await asyncio.wait_for(out.readline(), 150)).decode().strip() if out else ""
    expect(line.startswith("sb-") or line, "the owner made no sandbox")
    return process, line


@check(41, "kill -9 of a library client: its sandbox is gone after the heartbeat window", alone=True)
async def _client_killed(ctx: Context) -> None:
    process, sandbox_id = await _owned(ctx, 8)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await asyncio.sleep(1)
    expect(not await _gone(ctx, sandbox_id), "gone before the window was over")
    await eventually(lambda: _gone(ctx, sandbox_id), 30, "it lives on without its owner")
    expect((await ctx.orchard.get(sandbox_id)).reason == "heartbeat", "another reason than heartbeat")


@check(41, "SIGINT to a library client: its sandbox is gone at once", alone=True)
async def _client_interrupted(ctx: Context) -> None:
    process, sandbox_id = await _owned(ctx, 30)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.wait(), 100)
    await eventually(lambda: _gone(ctx, sandbox_id), 15, "it lives on after its owner's end")
    reason = (await ctx.orchard.get(sandbox_id)).reason
    expect(reason == "deleted", f"it was not ended by its owner, but by {reason}")


@check(42, "deleting twice is fine, an unknown id is not found")
async def _delete(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=60)
    await ctx.orchard.delete(box.id)
    await ctx.orchard.delete(box.id)
    info = await ctx.orchard.get(box.id)
    expect((info.state, info.reason) == (State.GONE, "deleted"), f"the record says {info}")
    await expect_error(NotFound, ctx.orchard.delete("sb-0000000000000000never"))
    await expect_error(NotFound, ctx.orchard.get("sb-0000000000000000never"))


@check(42, "after delete(wait=True) no process, mount, namespace, cgroup or file is left")
async def _nothing_left(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=60)
    await box.start("setsid sleep 305 & sleep 305")
    await box.run("echo x > /tmp/x")
    expect(await ctx.traces(box.id), "no trace of a living sandbox was found, so the probe is blind")
    await ctx.orchard.delete(box.id, wait=True)
    left = await ctx.traces(box.id)
    expect(not left, f"left behind: {left}")


@check(43, "a failed create leaves nothing")
async def _failed_create(ctx: Context) -> None:
    label = {"orchard.probe": ctx.new_key()}
    await expect_error(CreateFailed, ctx.orchard.create("localhost:1/no/such:1", labels=label, ttl=60))
    page = await ctx.orchard.list(label)
    expect(not page, f"listed: {page}")


@check(44, "a sandbox whose daemon died is an error, never a blank one")
async def _never_restarted(ctx: Context) -> None:
    box = await ctx.orchard.create(ctx.image, ttl=60)
    await box.run("echo state > /tmp/state")
    await ctx.kill_daemon(box.id)
    try:
        result = await box.run("cat /tmp/state", timeout=5)
    except SandboxGone as gone:
        expect(gone.reason in ("unknown", "signal", "restarted", "oom"), f"saw {gone}")
    except OrchardError as error:
        expect(False, f"not told as gone: {error!r}")
    else:
        expect(False, f"a command ran in what replaced it: {result}")
    await ctx.orchard.delete(box.id)
