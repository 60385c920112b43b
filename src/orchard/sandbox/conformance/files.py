"""Files: lines 28 to 36."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator

from orchard.core.errors import FileDenied, FileError, FileIsFolder, FileMissing, FileNoSpace, FileReadOnly
from orchard.sandbox.conformance.pace import bare_copy, in_time
from orchard.sandbox.conformance.suite import Context, check, expect, expect_error
from orchard.sandbox.conformance.tars import hostile_tars, receive

NAMES = (
    "é.txt", "日本 語.txt", 'a"b', "new\nline", "-rf", " lead", "%2e%2e", "%2F", ".env", "x" * 255, "a'b", "$(id)",
    "\\", "q?x=1&y=2#z", "+", "tab\t", "nameé".encode("latin-1").decode("utf-8", "surrogateescape"),
)  # fmt: skip


@check(28, "every size from nothing to a chunk and over round-trips by sha256")
async def _sizes(ctx: Context) -> None:
    async with ctx.box() as box:
        for size in (0, 1, 4095, 4096, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 10_000_001):
            data = secrets.token_bytes(size)
            await box.files.write("/tmp/sized", data)
            result = await box.run("sha256sum /tmp/sized")  # by a shell: in busybox it may be no program
            expect(result.text.split()[0] == hashlib.sha256(data).hexdigest(), f"{size} bytes changed on the way in")
            expect(await box.files.read("/tmp/sized") == data, f"{size} bytes changed on the way out")


@check(28, "2 GB round-trip in flat memory", alone=True)
async def _two_gigabytes(ctx: Context) -> None:
    block, count = secrets.token_bytes(1 << 20), 2000
    digest = hashlib.sha256()

    async def produce() -> AsyncIterator[bytes]:
        for _ in range(count):
            digest.update(block)
            yield block

    async with ctx.box() as box:
        await box.files.write("/tmp/large", produce())
        back = hashlib.sha256()
        async for chunk in box.files.open_read("/tmp/large"):
            back.update(chunk)
        expect(back.digest() == digest.digest(), "2 GB changed on the round trip")
        memory = await box.run("grep -h VmHWM /proc/1/status || true")
        peak = int((memory.text.split() or ["VmHWM:", "0"])[1])
        expect(peak < 80_000, f"the daemon took {peak} kB for it")


@check(28, "a written file is visible to the very next command, 200 times of 200", alone=True)
async def _visible_at_once(ctx: Context) -> None:
    async with ctx.box() as box:
        for number in range(200):
            await box.files.write("/tmp/seen", b"%d" % number)
            result = await box.run(["cat", "/tmp/seen"])
            expect(result.stdout == b"%d" % number, f"write {number} was not visible: {result.stdout!r}")


@check(29, "fifty parallel writes into a new nested folder all succeed")
async def _parallel_writes(ctx: Context) -> None:
    async with ctx.box() as box:
        await asyncio.gather(*(box.files.write(f"/tmp/a/b/c/{number}", b"%d" % number) for number in range(50)))
        result = await box.run("ls -A /tmp/a/b/c | wc -l; cat /tmp/a/b/c/*")
        count, _, text = result.text.partition("\n")
        expect(count.strip() == "50", f"{count} files of 50")
        expect(sorted(text) == sorted("".join(map(str, range(50)))), "contents were mixed up")


@check(30, "names are listed and read back as they are")
async def _names(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.files.mkdir("/tmp/names")
        for number, name in enumerate(NAMES):
            await box.files.write(f"/tmp/names/{name}", b"%d" % number)
        listed = sorted(entry.name for entry in await box.files.list("/tmp/names"))
        expect(listed == sorted(NAMES), f"listed {sorted(set(listed) ^ set(NAMES))!r} differently")
        for number, name in enumerate(NAMES):
            expect(await box.files.read(f"/tmp/names/{name}") == b"%d" % number, f"{name!r} reads back another file")
        result = await box.run("cd /tmp/names && for f in * .env; do printf '%s\\0' \"$f\"; done")
        inside = {name.decode("utf-8", "surrogateescape") for name in result.stdout.split(b"\0")[:-1]}
        expect(inside == set(NAMES), f"inside: {inside ^ set(NAMES)!r}")


@check(31, "a folder goes up and comes down with dot files, empty folders, symlinks, modes and times")
async def _folder(ctx: Context) -> None:
    with ctx.folder() as local:
        source = local / "source"
        (source / "empty").mkdir(parents=True)
        (source / ".hidden").write_bytes(b"h")
        (source / "run.sh").write_bytes(b"#!/bin/sh\n")
        (source / "run.sh").chmod(0o751)
        (source / "link").symlink_to("run.sh")
        (source / "broken").symlink_to("nowhere")
        os.utime(source / "run.sh", (1_500_000_000, 1_500_000_000))
        async with ctx.box() as box:
            await box.upload(source, "/tmp/up")
            seen = await box.run(
                "cd /tmp/up && ls -A | sort | tr '\\n' ' '; stat -c '%a %Y' run.sh; readlink link; readlink broken"
            )
            wanted = [".hidden", "broken", "empty", "link", "run.sh", "751", "1500000000", "run.sh", "nowhere"]
            expect(seen.text.split() == wanted,
                   f"inside: {seen.text!r}")  # fmt: skip
            await box.run("mkfifo /tmp/up/pipe")
            skipped = (await box.download("/tmp/up", local / "back")).skipped
        back = local / "back"
        expect([name for name in skipped if name.endswith("pipe")], f"the FIFO is not named: {skipped}")
        expect(
            {path.name for path in back.iterdir()} == {".hidden", "broken", "empty", "link", "run.sh"}, "names differ"
        )
        stat = (back / "run.sh").stat()
        expect((stat.st_mode & 0o777, int(stat.st_mtime)) == (0o751, 1_500_000_000), f"mode or time: {stat}")
        expect((back / "link").readlink().name == "run.sh" and (back / "broken").is_symlink(), "symlinks differ")


@check(31, "1,000 small files go up and come down in under 2 s each")
async def _thousand_files(ctx: Context) -> None:
    with ctx.folder() as local:
        (local / "many").mkdir()
        for number in range(1000):
            (local / "many" / f"f{number}").write_bytes(b"%d" % number)
        async with ctx.box() as box:

            async def once() -> tuple[float, float]:
                shutil.rmtree(local / "back", ignore_errors=True)
                await box.run("rm -rf /tmp/many")
                up = await ctx.timed(box.upload(local / "many", "/tmp/many"))
                bare = await ctx.timed(asyncio.to_thread(bare_copy, local / "many", local / "bare"))
                down = await ctx.timed(box.download("/tmp/many", local / "back"))
                expect(len(list((local / "back").iterdir())) == 1000, "files are missing")
                return max(up, down), bare

            await in_time(once, 2.0, 5.0, "1,000 files up or down")


@check(32, "missing, folder, not a folder, no permission: different typed errors")
async def _typed_errors(ctx: Context) -> None:
    async with ctx.box() as box:
        await expect_error(FileMissing, box.files.read("/no/such"), errno_name="ENOENT")
        await expect_error(FileIsFolder, box.files.read("/tmp"), errno_name="EISDIR")
        await expect_error(FileIsFolder, box.files.write("/tmp", b"x"), errno_name="EISDIR")
        await box.files.write("/tmp/plain", b"x")
        await expect_error(FileError, box.files.read("/tmp/plain/below"), errno_name="ENOTDIR")
        await expect_error(FileError, box.files.read("/tmp/" + "n" * 300), errno_name="ENAMETOOLONG")
        await box.run("ln -s loop /tmp/loop")
        await expect_error(FileError, box.files.read("/tmp/loop"), errno_name="ELOOP")
        await expect_error(FileError, box.files.write("/proc/version", b"x"))


@check(32, "no permission and read-only are typed")
async def _denied(ctx: Context) -> None:
    async with ctx.box() as box:
        error = await expect_error(FileError, box.files.write("/sys/kernel/orchard", b"x"))
        expect(isinstance(error, FileDenied | FileReadOnly), f"saw {error.errno_name}")
        error = await expect_error(FileError, box.files.mkdir("/proc/orchard"))
        expect(error.errno_name != "EIO", f"saw {error.errno_name}")


@check(33, "a hostile tar from the sandbox cannot write outside the target on the client")
async def _hostile_tar(ctx: Context) -> None:
    with ctx.folder() as local:
        for kind, archive in hostile_tars(str(local)):
            target = local / f"target-{kind}"
            await receive(archive, target)
            outside = [path for path in local.rglob("*") if "evil" in path.name and target not in path.parents]
            expect(not outside, f"{kind}: wrote {outside}")
        expect(not (local.parent / "evil").exists(), "wrote above the folder")


@check(34, "a link that leaves the root stays in it: the host's files are not reached")
async def _confined(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.run("ln -s /etc /tmp/leak; ln -s ../../../../../../etc /tmp/up; ln -s /proc/1/root/etc /tmp/root")
        inside = await box.run(["cat", "/etc/hostname"])
        expect(await box.files.read("/tmp/leak/hostname") == inside.stdout, "the link leads elsewhere")
        expect(await box.files.read("/tmp/up/hostname") == inside.stdout, "the link leads elsewhere")
        await box.files.write("/tmp/leak/orchard-probe", b"inside")
        expect((await box.run(["cat", "/etc/orchard-probe"])).stdout == b"inside", "written elsewhere")
        expect(not ctx.host_has("/etc/orchard-probe"), "the host's /etc was written")
        for descriptor in range(3, 20):
            await box.run(f"ln -sfn /proc/1/fd/{descriptor}/.. /tmp/fd{descriptor}; ln -sfn /proc/1/cwd /tmp/cwd")
            try:
                names = [entry.name for entry in await box.files.list(f"/tmp/fd{descriptor}")]
            except FileError:
                continue
            expect(False, f"descriptor {descriptor} of the daemon leads to {names[:5]}")


@check(35, "a sparse 20 GB file costs bounded time and space")
async def _sparse(ctx: Context) -> None:
    async with ctx.box() as box:
        made = await box.run(
            "truncate -s 20G /tmp/sparse 2>/dev/null || dd of=/tmp/sparse bs=1 count=0 seek=21474836480"
        )
        expect(made.ok, f"no sparse file: {made.error_text}")
        entry = await box.files.stat("/tmp/sparse")
        expect(entry.size == 20 << 30, f"size {entry.size}")

        async def once() -> tuple[float, float]:
            return await ctx.timed(box.files.list("/tmp")), await ctx.timed(box.run("true"))

        await in_time(once, 2.0, 5.0, "a listing")
        head = b"".join([chunk async for chunk in box.files.open_read("/tmp/sparse", length=100)])
        expect(head == bytes(100), "the head is not zeros")


@check(35, "a listing with a broken symlink or a loop works")
async def _loops(ctx: Context) -> None:
    async with ctx.box() as box:
        await box.run(
            "mkdir -p /tmp/l/d; ln -s nowhere /tmp/l/broken; ln -s . /tmp/l/self; ln -s .. /tmp/l/d/up; mkfifo /tmp/l/p"
        )
        entries = {entry.path: entry.type for entry in await box.files.list("/tmp/l", recursive=True)}
        wanted = {"broken": "symlink", "self": "symlink", "d": "dir", "d/up": "symlink", "p": "fifo"}
        seen = {path.removeprefix("/tmp/l/"): kind for path, kind in entries.items()}
        expect(seen == wanted, f"listed {seen}")


@check(36, "files written to an image with a user belong to that user")
async def _owner(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("user")) as box:
        await box.files.write("mine/file", b"x")
        result = await box.run("id -u; stat -c %u mine mine/file; echo more >> mine/file && cat mine/file")
        uid, folder, file, content = result.text.split()
        expect(uid == folder == file != "0", f"user {uid}, folder {folder}, file {file}")
        expect(content == "xmore", f"the user cannot write it: {result.error_text}")


@check(36, "owners and modes of the image survive unpacking")
async def _image_owner(ctx: Context) -> None:
    async with ctx.box(image=ctx.special("user")) as box:
        result = await box.run("stat -c '%u %a' /srv/owned")
        expect(result.text.split() == ["1234", "640"], f"saw {result.text!r} {result.error_text!r}")


@check(47, "a full disk is ENOSPC inside and a typed error outside", feature="disk")
async def _full_disk(ctx: Context) -> None:
    async with ctx.box(disk=64 << 20) as box:
        result = await box.run("head -c 200000000 /dev/zero > /tmp/fill; echo $?")
        expect(b"space" in result.stderr or b"quota" in result.stderr, f"saw {result.stderr!r}")
        await expect_error(FileNoSpace, box.files.write("/tmp/more", bytes(64 << 20)))
