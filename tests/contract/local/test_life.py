"""How a sandbox of the local backend begins, is found again and ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.waiting import until

from orchard.core.errors import Conflict, CreateFailed, InvalidArgument, NotFound, SandboxGone, Unavailable, Unsupported
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.local.process import target
from orchard.sandbox.local.records import Store
from orchard.sandbox.types import SandboxSpec, State

Left = Callable[[str], list[str]]

_CREATE = """
import asyncio, sys
from pathlib import Path
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.types import SandboxSpec

async def main():
    backend = LocalBackend(LocalSettings(home=Path(sys.argv[1])))
    for key in sys.argv[3:]:
        print((await backend.create(SandboxSpec(image=sys.argv[2]), key)).id, flush=True)
    await backend.close()

asyncio.run(main())
"""


def other_process(home: Path, image: str, *keys: str) -> "subprocess.Popen[str]":
    """Start a process that makes one sandbox for each key and prints their ids."""
    return subprocess.Popen([sys.executable, "-c", _CREATE, home, image, *keys], stdout=subprocess.PIPE, text=True)


def pid_of(home: Path, sandbox_id: str) -> int:
    return json.loads((home / "sandboxes" / sandbox_id / "record.json").read_text())["pid"]


def exists(path: str) -> bool:
    return Path(path).exists()


async def gone(backend: LocalBackend, sandbox_id: str) -> str:
    """Wait for the end; return the reason."""

    async def is_gone() -> bool:
        return (await backend.get(sandbox_id)).state is State.GONE

    await until(is_gone)
    info = await backend.get(sandbox_id)
    assert info.reason is not None
    assert info.ended_at is not None
    return info.reason


async def test_ready_means_that_a_command_works_and_deleted_that_nothing_is_left(
    orchard: Orchard, busybox_root: str, left: Left
):
    box = await orchard.create(busybox_root)
    assert box.info.state is State.READY
    assert (await box.run(["busybox", "echo", "here"])).stdout == b"here\n"
    assert left(box.id)  # so that an empty list below means something
    await box.delete()
    assert left(box.id) == []
    info = await orchard.get(box.id)
    assert (info.state, info.reason) == (State.GONE, "deleted")
    await box.delete()
    with pytest.raises(NotFound):
        await orchard.delete("sb-none")
    with pytest.raises(InvalidArgument):
        await orchard.delete("../x")


async def test_a_key_stands_for_one_sandbox_across_processes(
    backend: LocalBackend, settings: LocalSettings, busybox_root: str
):
    others = [other_process(settings.home, busybox_root, "k1") for _ in range(2)]
    mine = await asyncio.gather(*(backend.create(SandboxSpec(image=busybox_root), "k1") for _ in range(3)))
    told = {other.communicate(timeout=60)[0].strip() for other in others}
    assert told == {info.id for info in mine}
    assert len(told) == 1
    with pytest.raises(Conflict):
        await backend.create(SandboxSpec(image=busybox_root, ttl=7.0), "k1")


async def test_another_process_finds_uses_and_ends_it(
    orchard: Orchard, settings: LocalSettings, busybox_root: str, left: Left
):
    maker = other_process(settings.home, busybox_root, "k")
    sandbox_id = maker.communicate(timeout=60)[0].strip()
    assert [info.id for info in await orchard.list()] == [sandbox_id]
    box = await orchard.attach(sandbox_id)
    assert (await box.run(["busybox", "id", "-u"])).text == "0\n"
    await box.delete()
    assert left(sandbox_id) == []
    assert await orchard.list() == []


async def test_a_creator_killed_at_any_moment_leaves_nothing_after_the_next_command(
    settings: LocalSettings, busybox_root: str, left: Left
):
    """Each is killed at another moment of its create; a sandbox that it did not tell of may live or not, never half."""
    made: set[str] = set()
    for step in range(6):
        with other_process(settings.home, busybox_root, *(f"k{step}-{number}" for number in range(50))) as maker:
            assert maker.stdout is not None
            made.add(maker.stdout.readline().strip())
            await asyncio.sleep(0.009 * step)
            maker.kill()
    backend = LocalBackend(settings)
    await backend.list()
    await backend.close()  # waits for the sweep
    alive = {info.id for info in (await backend.list(limit=1000)).items}
    assert made <= alive
    assert {path.name for path in (settings.home / "sandboxes").iterdir()} == alive
    assert {path.name for path in (settings.home / "runtime").iterdir()} == alive
    for sandbox_id in alive:
        await backend.delete(sandbox_id)
    await backend.close()
    assert [trace for sandbox_id in alive for trace in left(sandbox_id)] == []


async def test_a_pull_shows_and_ends_with_its_creator(
    backend: LocalBackend, settings: LocalSettings, busybox_root: str, tmp_path: Path
):
    archive = tmp_path / "never-written"
    os.mkfifo(archive)  # whoever reads it waits
    with other_process(settings.home, f"oci-archive:{archive}", "k") as maker:
        pulling = None
        while pulling is None:
            assert maker.poll() is None
            await asyncio.sleep(0.05)
            pulling = next(iter((await backend.list()).items), None)
        assert (pulling.state, (await backend.get(pulling.id)).state) == (State.PULLING, State.PULLING)
        with pytest.raises(Unavailable):
            await backend.endpoint(pulling.id)
        helpers = await running(str(archive), at_least=1)
        maker.kill()
    assert helpers
    await running(str(archive), at_least=0)
    await backend.list()
    await backend.close()
    assert list((settings.home / "sandboxes").iterdir()) == []
    with pytest.raises(NotFound):
        await backend.get(pulling.id)
    assert (await backend.create(SandboxSpec(image=busybox_root), "k")).state is State.READY  # the key is free


async def running(word: str, at_least: int) -> list[Path]:
    """Wait until so many processes, and for 0 none, have ``word`` on their command line; zombies have none."""
    await until(lambda: bool(skopeos(word)) == bool(at_least))
    return skopeos(word)


def skopeos(word: str) -> list[Path]:
    found: list[Path] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if words[0].endswith("skopeo") and word in " ".join(words):
                found.append(process)
    return found


async def test_the_lease_ends_it_and_the_next_command_sweeps(
    orchard: Orchard, backend: LocalBackend, busybox_root: str, left: Left
):
    box = await orchard.create(busybox_root)
    main = target(pid_of(backend.settings.home, box.id))
    assert main is not None
    await box.extend(0.5)  # not from its beginning on: it might end before it is ready
    assert await gone(backend, box.id) == "ttl"
    with pytest.raises(SandboxGone) as ended:
        await backend.endpoint(box.id)
    assert ended.value.reason == "ttl"
    await backend.close()  # waits for the sweep
    assert left(box.id) == []
    assert not main.alive()


async def test_killed_from_outside_it_is_gone_by_a_signal(
    orchard: Orchard, backend: LocalBackend, busybox_root: str, left: Left
):
    box = await orchard.create(busybox_root)
    await box.start(["busybox", "sleep", "1000"])
    os.kill(pid_of(backend.settings.home, box.id), signal.SIGKILL)
    assert await gone(backend, box.id) == "signal"
    await backend.close()  # waits for the sweep
    assert left(box.id) == []


async def test_the_dead_are_never_told_as_ready_while_another_sweeps_them(
    orchard: Orchard, backend: LocalBackend, busybox_root: str
):
    home = backend.settings.home
    killed, over = await orchard.create(busybox_root), await orchard.create(busybox_root)
    mains = [target(pid_of(home, box.id)) for box in (killed, over)]
    store = Store(home)
    with store.lock(killed.id) as first, store.lock(over.id) as second:
        assert first
        assert second
        os.kill(pid_of(home, killed.id), signal.SIGKILL)
        await over.extend(0.5)
        await until(lambda: not any(main is not None and main.alive() for main in mains))
        assert (await backend.list()).items == []
        infos = [await backend.get(box.id) for box in (killed, over)]
        assert [(info.state, info.reason) for info in infos] == [(State.GONE, "signal"), (State.GONE, "ttl")]
        assert list((home / "ended").iterdir()) == []  # it is written by whoever holds the lock
    assert [await gone(backend, box.id) for box in (killed, over)] == ["signal", "ttl"]


async def test_a_cancelled_create_leaves_nothing(backend: LocalBackend, settings: LocalSettings, busybox_root: str):
    making = [
        asyncio.ensure_future(backend.create(SandboxSpec(image=busybox_root), f"k{number}")) for number in range(8)
    ]
    await asyncio.sleep(0.05)
    given_up = [each for each in making if each.cancel()]
    outcomes = await asyncio.gather(*given_up, return_exceptions=True)
    assert outcomes
    assert all(isinstance(each, asyncio.CancelledError) for each in outcomes)
    for each in making:
        if each not in given_up:
            await backend.delete((await each).id)
    await backend.close()
    assert list((settings.home / "sandboxes").iterdir()) == []


async def test_a_failed_create_leaves_nothing_and_frees_its_key(
    backend: LocalBackend, settings: LocalSettings, busybox_root: str
):
    with pytest.raises(CreateFailed) as failed:
        await backend.create(SandboxSpec(image="dir:/nowhere"), "k")
    assert failed.value.reason == "image_not_found"
    with pytest.raises(CreateFailed) as late:
        await backend.create(SandboxSpec(image=busybox_root, create_timeout=0.005), "k")
    assert late.value.reason == "start_timeout"
    for folder in ("sandboxes", "runtime"):
        assert list((settings.home / folder).iterdir()) == []
    assert (await backend.create(SandboxSpec(image=busybox_root), "k")).state is State.READY


async def test_what_it_cannot_do_is_refused_by_name(backend: LocalBackend, settings: LocalSettings, busybox_root: str):
    for spec in (SandboxSpec(image=busybox_root, network="open"), SandboxSpec(image=busybox_root, disk=1 << 30)):
        with pytest.raises(Unsupported):
            await backend.create(spec, "k")
    named = (await backend.capabilities()).exceptions
    assert {"network=open", "disk", "pause", "snapshot"} <= named.keys()
    with pytest.raises(CreateFailed) as much:
        await backend.create(SandboxSpec(image=busybox_root, cpu=10000.0), "k")
    assert much.value.reason == "unschedulable"
    if "cpu" in named:
        with pytest.raises(Unsupported):
            await backend.create(SandboxSpec(image=busybox_root, cpu=1.0), "k")
    closed = LocalBackend(LocalSettings(home=settings.home, allow_host_dirs=False))
    with pytest.raises(InvalidArgument):
        await closed.create(SandboxSpec(image=busybox_root), "k")


async def test_ended_records_are_dropped_after_their_time(settings: LocalSettings, busybox_root: str):
    brief = LocalBackend(LocalSettings(home=settings.home, keep_ended=0.0, sweep_every=0.0))
    info = await brief.create(SandboxSpec(image=busybox_root), "k")
    await brief.delete(info.id)
    await brief.list()
    await brief.close()
    with pytest.raises(NotFound):
        await brief.get(info.id)
    again = await brief.create(SandboxSpec(image=busybox_root), "k")  # the key is free too
    assert again.id != info.id
    await brief.delete(again.id)
    await brief.close()


async def test_listing_goes_by_labels_and_pages(backend: LocalBackend, busybox_root: str):
    for number in range(3):
        await backend.create(SandboxSpec(image=busybox_root, labels={"run": "a", "n": str(number)}), f"k{number}")
    first = await backend.list({"run": "a"}, limit=2)
    assert [info.labels["n"] for info in first.items] == ["0", "1"]
    second = await backend.list({"run": "a"}, limit=2, cursor=first.next)
    assert ([info.labels["n"] for info in second.items], second.next) == (["2"], None)
    assert (await backend.list({"run": "b"})).items == []


async def test_a_home_may_lie_deep(local_home: Path, busybox_root: str):
    """Its path is longer than a socket's may be, and holds what separates mount options."""
    deep = LocalBackend(LocalSettings(home=local_home / ("deep, and : odd/" * 8)))
    async with Orchard(backend=deep) as orchard:
        box = await orchard.create(busybox_root)
        assert (await box.run(["busybox", "echo", "here"])).stdout == b"here\n"
        socket = (await deep.endpoint(box.id)).base.removeprefix("unix:")
        assert exists(socket)
        await box.delete()
        assert not exists(socket)
    many = await asyncio.gather(*(deep.create(SandboxSpec(image=busybox_root), f"k{number}") for number in range(6)))
    await asyncio.gather(*(deep.delete(info.id) for info in many))
    await deep.close()


async def test_a_home_may_be_named_from_the_folder_one_is_in(
    local_home: Path, busybox_root: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(local_home)
    near = LocalBackend(LocalSettings(home=Path("near")))
    async with Orchard(backend=near) as orchard, orchard.sandbox(busybox_root) as box:
        monkeypatch.chdir("/")
        assert (await box.run(["busybox", "echo", "here"])).stdout == b"here\n"
    await near.close()


async def test_secrets_stay_off_the_disk_and_out_of_sight(orchard: Orchard, backend: LocalBackend, busybox_root: str):
    box = await orchard.create(busybox_root)
    endpoint = await backend.endpoint(box.id)
    token = endpoint.headers["Authorization"].split()[1]
    assert token not in repr(endpoint)
    home = backend.settings.home
    assert (home / "service.key").stat().st_mode & 0o077 == 0
    assert home.stat().st_mode & 0o077 == 0
    written = [path.read_bytes() for path in (home / "sandboxes" / box.id).glob("*") if path.is_file()]
    assert written
    assert not any(token.encode() in content for content in written)
    seen = await box.run("busybox cat /proc/1/environ /proc/1/cmdline")
    assert token.encode() not in seen.stdout
