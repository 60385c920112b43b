"""Images: lines 55 and 56."""

from __future__ import annotations

from orchard.core.errors import CommandNotStarted
from orchard.sandbox.conformance.suite import Context, check, expect, expect_error


@check(55, "a busybox-only root: argv works, and shell uses the shell there is")
async def _busybox(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("busybox")) as box:
        expect((await box.run(["busybox", "echo", "argv"])).stdout == b"argv\n", "argv does not work")
        expect((await box.run("echo $((1+1)) | cat")).stdout == b"2\n", "shell does not work")
        await box.files.write("/tmp/f", b"x")
        expect(await box.files.read("/tmp/f") == b"x", "files do not work")
        await expect_error(CommandNotStarted, box.run("true", shell="bash"), reason="no_shell")


@check(55, "a root with one static binary: argv works, a missing shell is named, files and time-outs work")
async def _static(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("static")) as box:
        result = await box.run(["/busybox", "echo", "hello"])
        expect(result.stdout == b"hello\n", f"argv: {result} {result.stderr!r}")
        error = await expect_error(CommandNotStarted, box.run("echo x"), reason="no_shell")
        expect("sh" in str(error), f"the missing shell is not named: {error}")
        await expect_error(CommandNotStarted, box.run(["/nope"]), reason="program_not_found")
        await box.files.write("/new/file", b"x")
        expect(await box.files.read("/new/file") == b"x", "files do not work")
        expect((await box.run(["/busybox", "sleep", "30"], timeout=0.5)).timed_out, "time-outs do not work")


@check(55, "a program of another format or architecture is told as such")
async def _not_executable(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.files.write("/tmp/prog", b"\x7fELF garbage", mode=0o755)
        await expect_error(CommandNotStarted, box.run(["/tmp/prog"]), reason="not_executable")
        await box.files.write("/tmp/plain", b"#!/bin/sh\n", mode=0o644)
        await expect_error(CommandNotStarted, box.run(["/tmp/plain"], user="65534"), reason="permission")


@check(56, "without /etc/passwd, as a random uid: commands run")
async def _no_passwd(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("static"), user="12345:23456") as box:
        seen = [(await box.run(["/busybox", "id", flag])).text.strip() for flag in ("-u", "-g")]
        expect(seen == ["12345", "23456"], f"saw {seen}")


@check(56, "ENV, WORKDIR and USER of the image hold")
async def _image_settings(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("user")) as box:
        result = await box.run("id -un; pwd; echo $IMAGE_SAYS")
        expect(result.text.split() == ["app", "/home/app", "hello"], f"saw {result.text!r}")
        expect(
            (await box.run("echo $IMAGE_SAYS", env={"IMAGE_SAYS": "other"})).stdout == b"other\n", "env does not win"
        )
        expect((await box.run("id -u", user="0")).stdout == b"0\n", "user= does not win")


@check(56, "an ENTRYPOINT runs only when asked for, and its end does not end the sandbox")
async def _entrypoint(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("user")) as box:
        expect(not await box.files.exists("/tmp/entered"), "the ENTRYPOINT ran without being asked for")
    async with ctx.box(image=ctx.special("user"), entrypoint=True) as box:
        process = await box.attach("entrypoint")
        result = await process.wait(30)
        expect(result.exit_code == 5, f"the entrypoint ended with {result}")
        expect((await box.run("cat /tmp/entered; echo on")).stdout == b"entered\non\n", "the sandbox ended with it")
    async with ctx.box(entrypoint=["sh", "-c", "echo own > /tmp/own; sleep 300"]) as box:
        seen = await box.run("until [ -s /tmp/own ]; do sleep 0.1; done; cat /tmp/own", timeout=30)
        expect(seen.stdout == b"own\n", f"an own entrypoint did not run: {seen}")


@check(56, "noexec /tmp and dropped capabilities do not hinder the daemon")
async def _hardened(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run(
            "grep CapBnd /proc/self/status; grep -c . /proc/self/mountinfo; mount -t tmpfs none /proc 2>&1; true"
        )
        bounding = int(result.text.split()[1], 16)
        expect(not bounding >> 21 & 1, "CAP_SYS_ADMIN is in the bounding set")
        expect("denied" in result.text or "permitted" in result.text, f"a mount succeeded: {result.text!r}")
