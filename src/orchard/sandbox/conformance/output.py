"""Output: lines 17 to 23."""

from __future__ import annotations

import asyncio
import hashlib

from orchard.core.errors import OrchardError
from orchard.sandbox.conformance.pace import in_time, waits
from orchard.sandbox.conformance.suite import Context, check, expect


@check(17, "over the limit head and tail stay, the cut is told, and the whole can be fetched")
async def _head_and_tail(ctx: Context) -> None:
    whole = b"".join(b"%d\n" % number for number in range(1, 3_000_001))
    async with ctx.box() as box:
        result = await box.run("seq 1 3000000")
        expect(result.ok and result.truncated, f"not marked as truncated: {result}")
        expect(result.stdout_bytes == len(whole), f"{result.stdout_bytes} bytes of {len(whole)} counted")
        expect(len(result.stdout) <= 1 << 20, f"{len(result.stdout)} bytes kept, over the limit of 1 MiB")
        expect(result.stdout_dropped == len(whole) - len(result.stdout), f"dropped: {result.stdout_dropped}")
        cut = result.stdout_cut or 0
        expect(cut > 100_000 and result.stdout[:cut] == whole[:cut], "the head is not the head")
        tail = result.stdout[cut:]
        expect(len(tail) > 100_000 and whole.endswith(tail), "the tail is not the tail")
        digest = hashlib.sha256()
        async for chunk in box.output(result.id, "stdout"):
            digest.update(chunk)
        expect(digest.digest() == hashlib.sha256(whole).digest(), "the whole is not byte-exact")


@check(17, "the limit is the caller's, zero too, and what fits is whole")
async def _own_limit(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("printf 0123456789", output_limit=4)
        expect((result.stdout, result.stdout_cut) == (b"0189", 2), f"saw {result.stdout!r}, cut {result.stdout_cut}")
        expect(result.stdout_dropped == 6 and result.truncated, f"saw {result}")
        result = await box.run("printf 0123456789", output_limit=10)
        expect(result.stdout == b"0123456789" and not result.truncated, f"saw {result}")
        result = await box.run("printf 0123456789", output_limit=0)
        expect(result.stdout == b"" and result.stdout_bytes == 10, f"saw {result}")


@check(18, "output is byte-exact")
async def _exact(ctx: Context) -> None:
    wanted = {
        r"printf 'a\n\n\nb\n\n'": b"a\n\n\nb\n\n",
        "printf abc": b"abc",
        r"printf 'a\rb\rc'": b"a\rb\rc",
        r"printf 'a\0\377'": b"a\0\xff",
        r"printf '\n'": b"\n",
        "true": b"",
        r"printf '\357\273\277x\r\n'": b"\xef\xbb\xbfx\r\n",
    }
    async with ctx.box() as box:
        for command, output in wanted.items():
            result = await box.run(command)
            expect(result.stdout == output, f"{command}: {result.stdout!r}")
            result = await box.run(f"({command}) >&2")
            expect(result.stderr == output and result.stdout == b"", f"{command} on stderr: {result.stderr!r}")


@check(18, "a line of 5 MB and random bytes arrive as they were written")
async def _exact_large(ctx: Context) -> None:
    async with ctx.box() as box:
        line = await box.run("head -c 5000000 /dev/zero | tr '\\0' x", output_limit=1 << 23)
        expect(line.stdout == b"x" * 5_000_000, f"{len(line.stdout)} bytes of 5,000,000")
        made = await box.run("head -c 4096 /dev/urandom | tee /tmp/random")
        expect(made.stdout == await box.files.read("/tmp/random"), "random bytes were changed")


@check(19, "text views never raise and never split a character")
async def _text_views(ctx: Context) -> None:
    async with ctx.box() as box:
        hundred = "é" * 100
        process = await box.start(f"i=0; while [ $i -lt 4000 ]; do printf {hundred}; i=$((i+1)); done")
        count = 0
        async for text in process.text():
            expect(set(text) <= {"é"}, f"a character was split: {text[:20]!r}")
            count += len(text)
        expect(count == 400_000, f"{count} of 400,000 characters")
        result = await box.run(r"printf 'a\377\376b'")
        expect(result.text == "a��b", f"saw {result.text!r}")
        cut = await box.run("printf éééé", output_limit=5)
        expect(cut.text.startswith("é"), f"the text of a cut output: {cut.text!r}")


@check(20, "the exit code never arrives before the last output", alone=True)
async def _exit_after_output(ctx: Context) -> None:
    async with ctx.box() as box:
        for number in range(500):
            result = await box.run("echo x; exit 3")
            expect((result.exit_code, result.stdout) == (3, b"x\n"), f"run {number}: {result} {result.stdout!r}")
        results = await asyncio.gather(*(box.run("echo x; exit 3") for _ in range(50)))
        wrong = [result for result in results if (result.exit_code, result.stdout) != (3, b"x\n")]
        expect(not wrong, f"{len(wrong)} of 50 at once: {wrong[:1]}")


@check(21, "a broken connection is never exit 0")
async def _broken_is_not_zero(ctx: Context) -> None:
    async with ctx.box() as box, ctx.faulty(box, cut_after=(100, 4000), heal=False) as (faulty, proxy):
        for number in range(10):
            try:
                async with asyncio.timeout(3):
                    result = await faulty.run(f"seq 1 200000; exit {number + 3}", timeout=5)
            except (OrchardError, TimeoutError):
                continue
            expect(result.exit_code == number + 3, f"a cut stream became {result}")
        expect(proxy.injected["cut_answer"] > 0, "the client did not go through the proxy")


@check(22, "100 MB stream at the client's pace while another coroutine ticks", alone=True)
async def _large_stream(ctx: Context) -> None:
    size = 100_000_000

    async def once() -> tuple[float, float]:
        async with waits() as worst:
            process = await box.start(f"head -c {size} /dev/zero")
            seen = 0
            async for event in process:
                seen += len(event.data)
            result = await process.wait(10)
        expect(seen == size and result.exit_code == 0, f"{seen} of {size} bytes, {result}")
        return worst()

    async with ctx.box() as box:
        await in_time(once, 1.0, 5.0, "a tick of another coroutine")


@check(22, "500 MB that nobody reads cost the daemon no memory, and the tail can be had", alone=True)
async def _nobody_reads(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.run("true")
        process = await box.start("head -c 500000000 /dev/zero | tr '\\0' y; printf END")
        result = await process.wait(600)
        expect(result.stdout_bytes == 500_000_003, f"{result.stdout_bytes} bytes counted")
        tail = b"".join([chunk async for chunk in box.output(process.id, "stdout", offset=500_000_000)])
        expect(tail == b"END", f"the tail is {tail[:20]!r}")
        memory = await box.run(["sh", "-c", "grep -h VmRSS /proc/1/status || true"])
        resident = int((memory.text.split() or ["VmRSS:", "0"])[1])
        expect(resident < 40_000, f"the daemon holds {resident} kB")


@check(23, "stdout and stderr stay apart")
async def _apart(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("echo out; echo err >&2; echo out2")
        expect((result.stdout, result.stderr) == (b"out\nout2\n", b"err\n"), f"{result.stdout!r} {result.stderr!r}")


@check(23, "with merge both are on one pipe in exact order")
async def _merged(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("i=0; while [ $i -lt 1000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done", merge=True)
        wanted = b"".join(b"o%d\ne%d\n" % (i, i) for i in range(1000))
        expect(result.stdout == wanted and result.stderr == b"", f"out of order: {result.stdout[:80]!r} …")


@check(
    23,
    "a terminal has the size given and told anew, and all on it is one stream",
    feature="pty",
    tools=("stty",),
)
async def _terminal(ctx: Context) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size; read x; stty size; echo got $x >&2; exit 4"
    async with ctx.box() as box:
        process = await box.start(script, stdin=True, pty=(80, 24))
        lines = process.lines()
        expect((first := await anext(lines)) == "24 80\r", f"saw {first!r}")
        await process.resize(100, 30)
        await process.send("hello\n")
        rest = [line async for line in lines]
        expect(rest[-2:] == ["30 100\r", "got hello\r"], f"saw {rest}")
        result = await process.wait(10)
        expect((result.exit_code, result.stderr_bytes) == (4, 0), f"saw {result}")


@check(23, "nothing is filtered, not even a shell's own noise")
async def _unfiltered(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("nosuchprogram")
        expect(result.exit_code == 127 and b"nosuchprogram" in result.stderr, f"{result} {result.stderr!r}")
