"""Service and SDK: lines 57 to 60."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from orchard.core.errors import CreateFailed, InvalidArgument, NotFound, OrchardError
from orchard.core.tasks import cancel
from orchard.sandbox.conformance.context import NotApplicable, NotHeld
from orchard.sandbox.conformance.pace import bare_server, in_time
from orchard.sandbox.conformance.suite import Context, check, expect, expect_error, patience
from orchard.sandbox.process import Process
from orchard.sandbox.types import Result

TWICE = """
import asyncio, os, threading
from orchard import Orchard, SyncOrchard
async def once(orchard=None):
    async with Orchard() as orchard:
        async with orchard.sandbox({image!r}) as box:
            return (await box.run("echo once")).text.strip()
print(asyncio.run(once()), asyncio.run(once()), flush=True)
with SyncOrchard() as orchard, orchard.sandbox({image!r}) as box:
    answers = []
    def ask(n):
        answers.append(box.run(f"echo {{n}}").text.strip())
    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    [thread.start() for thread in threads]; [thread.join() for thread in threads]
    print(*sorted(answers), flush=True)  # what is buffered at a fork, the child prints once more
child = os.fork()
if child == 0:
    try:
        print(asyncio.run(once()), flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
"""


_MANY = 1000
_TOGETHER = 250  # each of them waits: in a Pod a command with its supervisor is eight of often 4096 tasks
_WATCH = f"""
exec 3<>/tmp/go  # held open, so what is written stays until it is read
until [ "$n" = {_TOGETHER} ]; do sleep 0.1; n=$(ls /tmp/in | wc -l | tr -d ' '); echo $n; done
yes '' | head -n {_TOGETHER} >&3
sleep 3600
"""


@check(57, "a hundred creates at once all succeed", alone=True)
async def _hundred(ctx: Context) -> None:
    boxes = await asyncio.gather(*(ctx.orchard.create(ctx.image, ttl=600) for _ in range(100)), return_exceptions=True)
    made = [box for box in boxes if not isinstance(box, BaseException)]
    try:
        expect(len(made) == 100, f"{len(made)} of 100: {[box for box in boxes if isinstance(box, BaseException)][:1]}")
        results = await asyncio.gather(*(box.run("echo up") for box in made))
        expect(all(result.stdout == b"up\n" for result in results), "not all answer")
    finally:
        await asyncio.gather(*(ctx.orchard.delete(box.id) for box in made))


@check(57, "during 200 slow creates the service's health answers in under 100 ms", feature="service", alone=True)
async def _health(ctx: Context) -> None:
    async def once() -> tuple[float, float]:
        worst = bare = 0.0
        async with ctx.registry("busybox", delay=3) as image:
            creates = [asyncio.ensure_future(ctx.orchard.create(image, ttl=60)) for _ in range(200)]
            for _ in range(15):
                await asyncio.sleep(0.1)
                worst = max(worst, await ctx.timed(ctx.get("/health")))
                bare = max(bare, await ctx.timed(ctx.fetch(beside)))
            boxes = await asyncio.gather(*creates)
            await asyncio.gather(*(ctx.orchard.delete(box.id) for box in boxes))
        return worst, bare

    async with bare_server(ctx) as beside:
        await in_time(once, 0.1, 12.0, "the slowest of 15 asks for health")


@check(58, "two asyncio.run in a row, the sync client from threads, a fork after use: all work", alone=True)
async def _loops_threads_forks(ctx: Context) -> None:
    process = await ctx.python(TWICE.format(image=ctx.image))
    out, err = await asyncio.wait_for(process.communicate(), 280)
    expect(out.split() == b"once once 0 1 2 3 4 5 6 7 once".split(), f"{out!r} {(err or b'')[-800:]!r}")


@check(59, "keys, env values and file contents never appear in logs")
async def _no_secrets_in_logs(ctx: Context) -> None:
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(self.format(record))

    root, handler = logging.getLogger(), Keep(logging.DEBUG)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        async with ctx.box(env={"API_KEY": "s3cret-in-env"}) as box:
            await box.run("true", env={"OTHER": "s3cret-in-command"}, stdin=b"s3cret-in-stdin")
            await box.files.write("/tmp/f", b"s3cret-in-file")
            try:
                await box.run(["/nope"], env={"OTHER": "s3cret-in-error"})
            except OrchardError as error:
                records.append(repr(error))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    found = [line for line in records if "s3cret" in line or "Bearer" in line]
    expect(records and not found, f"{len(records)} records, in them: {found[:2]}")


@check(59, "ids such as ../x are refused")
async def _ids(ctx: Context) -> None:
    for wrong in ("../x", "sb-../../etc", "", "a/b", "A B", "sb-%2e%2e", "x" * 200):
        for call in (ctx.orchard.get, ctx.orchard.delete, ctx.orchard.attach):
            try:
                await call(wrong)
            except (InvalidArgument, NotFound):
                continue
            expect(False, f"{wrong!r} was accepted")
    async with ctx.box() as box:
        await expect_error(InvalidArgument, box.run("true", key="../x"))


@check(59, "a mount of the host is refused unless it is allowed", feature="service")
async def _host_mount(ctx: Context) -> None:
    if ctx.image.partition(":")[0] in ("host", "dir"):
        raise NotApplicable(f"this service allows it: the suite itself runs on {ctx.image}")
    for image in ("host", "dir:/etc"):
        try:
            box = await ctx.orchard.create(image, ttl=60)
        except (CreateFailed, OrchardError) as error:
            expect("host" in str(error) or "allow" in str(error), f"saw {error}")
        else:
            await ctx.orchard.delete(box.id)
            expect(False, f"{image} was given to a tenant of the service")


@check(60, "a thousand commands at once from one client are not capped silently", alone=True)
async def _thousand_commands(ctx: Context) -> None:
    """Short ones first; then, since a slow machine makes a queue of those, fewer that wait inside for one another."""
    async with ctx.box() as box:
        _all_right(await asyncio.gather(*(box.run(f"echo {number}", timeout=600) for number in range(_MANY))))
        (await box.run("mkdir /tmp/in && mkfifo /tmp/go")).check()
        watch = await box.start(_WATCH)
        script = ": >/tmp/in/{0}; read go </tmp/go; echo {0}"
        commands = [asyncio.ensure_future(box.run(script.format(each), timeout=900)) for each in range(_TOGETHER)]
        watching = asyncio.ensure_future(_all_begin(watch))
        try:
            _, results = await asyncio.gather(watching, asyncio.gather(*commands))
        finally:
            await cancel(watching, *commands)
        _all_right(results)


def _all_right(results: Sequence[Result]) -> None:
    wrong = [number for number, result in enumerate(results) if result.text.strip() != str(number)]
    expect(not wrong, f"{len(wrong)} of {len(results)} are wrong")


async def _all_begin(watch: Process) -> None:
    """Return once the commands let go of one another; where no more begin for a while, there is a cap."""
    loop, told, seen = asyncio.get_running_loop(), b"", 0
    limit = 20 * patience.get()
    try:
        async with asyncio.timeout(limit) as end:
            async for chunk in watch:
                told += chunk.data
                if (now := max(map(int, told.split(b"\n")[:-1]), default=0)) > seen:
                    seen = now
                    end.reschedule(loop.time() + limit)
                if seen == _TOGETHER:
                    return
    except TimeoutError:
        raise NotHeld(f"{seen} of {_TOGETHER} commands began, and no other one in {limit:.0f} s") from None
    raise NotHeld(f"the command that counts the others ended when {seen} had begun")
