"""``box.files`` and folders over the real wire."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import socket
import stat
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import pytest
from tests.support.waiting import until

from orchard.core.errors import FileDenied, FileError, FileIsFolder, FileMissing, FileNotFolder, FilePresent
from orchard.sandbox import Sandbox, tree
from orchard.sandbox.localfile import piped
from orchard.sandbox.transport import Call, query

NAMES = ["é.txt", "日本 語.txt", 'a"b', "new\nline", "-rf", " leading", "%2e%2e", "%2F", ".env", "x" * 255, "lat\udcff"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_names_are_listed_and_read_back_as_they_are(box: Sandbox, name: str) -> None:
    await box.files.write(f"names/{name}", name.encode("utf-8", "surrogateescape"))
    assert [entry.name for entry in await box.files.list("names")] == [name]
    assert await box.files.read(f"names/{name}") == name.encode("utf-8", "surrogateescape")
    assert await box.files.read(f"names/{name}".encode("utf-8", "surrogateescape")) == os.fsencode(name)
    await box.files.remove(f"names/{name}")
    assert await box.files.list("names") == []


async def test_write_takes_bytes_text_files_and_iterators(box: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(3 << 20))

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield bytes(1 << 19)

    for content, data in [
        (b"", b""), (b"\0\xff", b"\0\xff"), ("text é", "text é".encode()), (local, local.read_bytes()),
        (pieces(), bytes(5 << 19)),
    ]:  # fmt: skip
        written = await box.files.write("deep/er/f", content, mode=0o640)
        assert (written.size, written.sha256, written.mode) == (len(data), hashlib.sha256(data).hexdigest(), 0o640)
        assert await box.files.read("deep/er/f") == data
    assert await box.files.read("deep/er/f", offset=5, length=7) == bytes(7)
    assert await box.files.read("deep/er/f", offset=99 << 20) == b""


async def test_written_is_visible_to_the_next_command(box: Sandbox) -> None:
    for number in range(50):
        await box.files.write("f", f"{number}")
        assert (await box.run("cat f")).text == f"{number}"


async def test_parallel_writes_into_a_new_folder(box: Sandbox) -> None:
    await asyncio.gather(*(box.files.write(f"new/nested/{number}", b"x") for number in range(50)))
    assert len(await box.files.list("new/nested")) == 50


async def test_the_other_verbs(box: Sandbox) -> None:
    files = box.files
    await files.mkdir("a/b")
    await files.mkdir("a/b")
    await files.write("a/b/f", "1")
    await files.append("a/b/f", "2")
    await files.append("a/fresh", b"new")
    await files.move("a/b/f", "a/g")
    await files.symlink("a/l", "g")
    await files.symlink("a/dangling", "nowhere")
    await files.chmod("a/g", 0o600)
    assert await files.read_text("a/l") == "12"
    assert await files.read_text("a/fresh") == "new"
    entry = await files.stat("a/l", follow=False)
    assert (entry.type, entry.target, entry.name) == ("symlink", "g", "l")
    assert (await files.stat("a/l")).mode == 0o600
    assert await files.exists("a/dangling")
    assert not await files.exists("a/none")
    assert sorted(entry.name for entry in await files.list("a", recursive=True)) == ["b", "dangling", "fresh", "g", "l"]
    await files.remove("a", recursive=True)
    await files.remove("a", missing_ok=True)


async def test_failures_are_typed(box: Sandbox) -> None:
    files = box.files
    await files.write("d/f", b"x")
    with pytest.raises(FileMissing) as caught:
        await files.read("none")
    assert caught.value.errno_name == "ENOENT"
    with pytest.raises(FileIsFolder):
        await files.read("d")
    with pytest.raises(FileNotFolder):
        await files.list("d/f")
    with pytest.raises(FilePresent):
        await files.remove("d")
    with pytest.raises(FilePresent):
        await files.mkdir("d/f", parents=False)


async def test_watch_tells_changes(box: Sandbox) -> None:
    await box.files.mkdir("w")

    async def first() -> str:
        async with aclosing(box.files.watch("w")) as changes:
            async for change in changes:
                return change.path.rpartition("/")[2]
        return ""

    begun = asyncio.Event()

    async def all_until_it_goes() -> set[str]:
        events: set[str] = set()
        async for change in box.files.watch("w"):
            events.add(change.event)
            begun.set()
        return events

    seen, everything = asyncio.ensure_future(first()), asyncio.ensure_future(all_until_it_goes())
    async with asyncio.timeout(60):
        for number in itertools.count():
            await box.files.write("w/f", f"{number}")
            await asyncio.wait([seen], timeout=0.05)
            if seen.done() and begun.is_set():
                break
    assert (await seen).lstrip(".").startswith("f")
    await box.files.remove("w", recursive=True)
    assert "removed" in await asyncio.wait_for(everything, 60)


def grow(folder: Path) -> None:
    """A tree with everything that is easily lost."""
    (folder / "empty").mkdir(parents=True)
    (folder / ".hidden").write_text("dot")
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/deep/run.sh").write_text("#!/bin/sh\n")
    (folder / "sub/deep/run.sh").chmod(0o755)
    (folder / "sub/link").symlink_to("deep/run.sh")
    (folder / "sub/absolute").symlink_to("/etc/hostname")
    (folder / "sub/dangling").symlink_to("nowhere")
    (folder / "日本\n語").write_bytes(os.urandom(100_000))
    (folder / ("n" * 200)).write_text("long")
    for name in ("aligned", "sub/aligned"):  # whole blocks, and whole pieces of what is sent at once
        (folder / name).write_bytes(os.urandom(1 << 19))
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (1_600_000_000.5, 1_600_000_000.5), follow_symlinks=False)


def facts(folder: Path) -> dict[str, tuple[object, ...]]:
    return {
        str(path.relative_to(folder)): (
            oct(path.lstat().st_mode), path.lstat().st_mtime,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
    }  # fmt: skip


async def test_a_folder_survives_the_round_trip(box: Sandbox, short_path: Path) -> None:
    there, back = short_path / "there", short_path / "back"
    grow(there)
    sent = await box.upload(there, "up")
    assert sorted(sent.skipped) == ["fifo", "socket"]
    got = await box.download("up", back)
    assert got.skipped == ()
    (there / "fifo").unlink()
    (there / "socket").unlink()
    want, have = facts(there), facts(back)
    for path in ("empty", "sub", "sub/deep"):  # removing the special files touched only the root
        assert want[path] == have[path]
    assert want == have
    assert (await box.run("sub/deep/run.sh && mkfifo p", cwd=f"{box.info.workdir}/up")).exit_code == 0
    await box.run("ln .hidden linked && truncate -s 3G sparse && echo end >> sparse", cwd=f"{box.info.workdir}/up")
    again = await box.download("up", back)
    assert again.skipped == ("p",)
    assert (back / "linked").read_text() == "dot"
    assert (back / "sparse").stat().st_size == (3 << 30) + 4
    assert (back / "sparse").stat().st_blocks < 1000


async def test_a_file_up_and_down(box: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "f"
    local.write_bytes(os.urandom(1 << 20))
    local.chmod(0o751)
    await box.upload(local, "sub/g")
    assert (await box.files.stat("sub/g")).mode == 0o751
    await box.download("sub/g", tmp_path / "h")
    assert (tmp_path / "h").read_bytes() == local.read_bytes()
    assert (tmp_path / "h").stat().st_mode & 0o777 == 0o751
    with pytest.raises(FileMissing):
        await box.download("none", tmp_path / "i")
    with pytest.raises(FileMissing):
        await box.upload(tmp_path / "none", "x")
    assert sorted(os.listdir(tmp_path)) == ["f", "h"]  # noqa: PTH208


async def test_an_upload_that_is_cancelled_lets_go_of_everything(box: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "large"
    with local.open("wb") as file:
        file.truncate(16 << 30)
    await box.files.stat("/")
    before = _descriptors()
    upload = asyncio.ensure_future(box.upload(local, "large"))
    await until(lambda: _descriptors()[str(local)] == 2)  # the file's, and the thread's own beside that of its socket
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    await until(lambda: not _descriptors() - before)

    async def empty() -> bool:
        return not await box.files.list()

    await until(empty)  # the temporary file goes with the connection


async def test_a_file_that_shrinks_while_it_is_sent_is_sent_again_as_it_is(box: Sandbox, tmp_path: Path) -> None:
    local, tries = tmp_path / "log", list[int]()
    local.write_bytes(os.urandom(3 << 20))
    async with piped(local) as (body, _):
        assert callable(body)

        def once() -> Any:
            made = body()
            tries.append(local.stat().st_size)
            os.truncate(local, 1 << 20)
            return made

        await box.transport.request(Call("PUT", "/files", query(path="log"), body=once))
    assert tries == [3 << 20, 1 << 20]
    assert await box.files.read("log") == local.read_bytes()


def _descriptors() -> Counter[str]:
    """What this process has open, by the kernel's names, and how often each."""
    found = Counter[str]()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this look itself
            found[str(path.readlink())] += 1
    return found


async def test_a_download_writes_into_a_pipe_and_spares_a_device(box: Sandbox, tmp_path: Path) -> None:
    await box.files.write("f", b"data")
    fifo, link, null = tmp_path / "fifo", tmp_path / "link", tmp_path / "null"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    await box.download("f", link)
    assert os.read(reader, 10) == b"data"
    os.close(reader)
    assert fifo.is_fifo()
    assert link.is_symlink()
    with pytest.raises(FileError, match="fifo has nobody"):
        await box.download("f", fifo)
    if os.geteuid() == 0:
        os.mknod(null, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        with contextlib.suppress(FileDenied):  # a file system that is mounted without devices
            await box.download("f", null)
        assert null.is_char_device()


async def test_a_download_that_is_cancelled_while_its_file_is_opened_leaves_none(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.files.write("f", b"data")
    opening, go, opened, real = threading.Event(), threading.Event(), list[IO[bytes]](), tree._create

    def slow(path: Path) -> IO[bytes]:
        opening.set()
        go.wait()
        opened.append(real(path))
        return opened[0]

    monkeypatch.setattr(tree, "_create", slow)
    download = asyncio.ensure_future(box.download("f", tmp_path / "f"))
    try:
        await until(opening.is_set)
        download.cancel()
        for _ in range(5):  # what does not wait for the thread has ended by now
            await asyncio.sleep(0)
    finally:
        go.set()
    await until(lambda: bool(opened))
    with pytest.raises(asyncio.CancelledError):
        await download
    assert opened[0].closed
    assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_a_download_that_finds_no_room_lets_go_of_the_answer(box: Sandbox) -> None:
    await box.files.write("f", bytes(3 << 20))
    hooks, left = sys.get_asyncgen_hooks(), list[object]()
    sys.set_asyncgen_hooks(hooks.firstiter, left.append)
    try:
        with pytest.raises(FileError) as caught:
            await box.download("f", Path("/dev/full"))
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert caught.value.errno_name == "ENOSPC"
    assert left == []  # for the garbage collector


async def test_a_place_that_cannot_take_a_download_is_named_as_it_was_given(box: Sandbox, tmp_path: Path) -> None:
    await box.run("mkdir d && echo x > d/f")
    (tmp_path / "file").write_text("mine")
    for remote, place, kind in [
        ("d/f", tmp_path / "none/f", FileMissing), ("d/f", tmp_path / "file/f", FileNotFolder),
        ("d/f", tmp_path, FileIsFolder), ("d", tmp_path / "file", FileNotFolder),
    ]:  # fmt: skip
        with pytest.raises(kind) as caught:
            await box.download(remote, place)
        assert caught.value.path == str(place)
        assert ".part" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208
    assert not [name for name in os.listdir(tmp_path.parent) if name.endswith(".part")]  # noqa: PTH208


async def test_a_thousand_small_files_go_up_and_come_down(box: Sandbox, tmp_path: Path) -> None:
    for number in range(1000):
        path = tmp_path / "there" / str(number % 10) / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}")
    await box.upload(tmp_path / "there", "many")
    await box.download("many", tmp_path / "back")
    assert facts(tmp_path / "there") == facts(tmp_path / "back")


async def test_a_hostile_tree_cannot_write_outside(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    back = tmp_path / "back"
    await box.run("mkdir -p evil && ln -s ../outside evil/l && echo x > evil/f")
    await box.download("evil", back)
    await box.run("rm evil/l && mkdir evil/l && echo pwned > evil/l/f")
    await box.download("evil", back)  # the link of the first download is not gone through
    assert list((tmp_path / "outside").iterdir()) == []
    assert (back / "l/f").read_text() == "pwned\n"
