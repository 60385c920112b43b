"""Limits, OOM and kills: on this machine's cgroups, and once more on pure cgroup v2 (tests/system/vm)."""

import asyncio
import contextlib
import time

import pytest
from tests.support.waiting import until

from orchard.core.errors import CommandNotStarted, CreateFailed, OrchardError
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.local import LocalBackend
from orchard.sandbox.local.cgroups import find_cgroups
from orchard.sandbox.local.records import Store
from orchard.sandbox.types import SandboxSpec

pytestmark = pytest.mark.skipif(find_cgroups() is None, reason="no control group of this machine may be written to")

MEMORY_BOMB = "busybox dd if=/dev/zero of=/dev/null bs=256M count=1"


@pytest.fixture
async def box(orchard: Orchard, busybox_root: str) -> Sandbox:
    return await orchard.create(busybox_root, memory="64MiB", pids=64, cpu=1)


async def test_a_memory_bomb_ends_the_command_and_says_so(box: Sandbox, backend: LocalBackend):
    bomb = await box.run(MEMORY_BOMB)
    assert bomb.oom_killed
    assert not bomb.timed_out
    assert bomb.exit_code != 0
    after = await box.run(["busybox", "echo", "alive"])
    assert (after.stdout, after.oom_killed) == (b"alive\n", False)
    assert (await box.stats())["oom_kills"] >= 1
    assert (await backend.get(box.id)).state == "ready"


async def test_where_a_limit_cannot_take_hold_nothing_runs(
    orchard: Orchard, backend: LocalBackend, busybox_root: str, monkeypatch: pytest.MonkeyPatch
):
    """So little memory that the kernel makes no group for a command below it (v1), or that no program fits (v2)."""
    monkeypatch.setattr("orchard.sandbox.types.LEAST_MEMORY", 1)
    try:
        async with orchard.sandbox(busybox_root, memory="4KiB") as small:
            ran = (await small.run(MEMORY_BOMB)).ok
    except (CreateFailed, CommandNotStarted):
        ran = False
    assert not ran
    assert (await backend.list()).items == []


async def test_the_oom_is_laid_at_the_door_of_the_command_that_met_it(box: Sandbox):
    sleeper = asyncio.ensure_future(box.run("busybox sleep 3"))
    bomb = await box.run(MEMORY_BOMB)
    assert bomb.oom_killed
    assert not (await sleeper).oom_killed


async def test_a_fork_bomb_is_held_and_the_next_command_runs(box: Sandbox):
    bomb = await box.run("{ b() { b | b & }; b; } & exec busybox sleep 100", timeout=1)
    assert bomb.timed_out
    after = await box.run("echo alive; busybox ps | busybox wc -l")
    assert after.stdout.startswith(b"alive\n")
    assert (await box.stats())["pids_limit"] == 64


async def test_a_time_out_ends_those_that_fled(box: Sandbox):
    began = time.monotonic()
    result = await box.run("busybox setsid busybox sleep 333 & (busybox sleep 334 &); busybox sleep 335", timeout=1)
    assert result.timed_out
    assert time.monotonic() - began < 60
    seen = await box.run("busybox ps")
    assert b"sleep 33" not in seen.stdout


async def test_one_cpu_looks_like_one(box: Sandbox):
    assert (await box.run("busybox nproc")).text == "1\n"
    online = await box.run("busybox cat /sys/devices/system/cpu/online")
    assert online.text in ("0\n", "0-0\n")


async def test_cpu_time_is_bounded_for_all_commands_together(orchard: Orchard, busybox_root: str):
    box = await orchard.create(busybox_root, cpu=0.25)
    before = (await box.stats())["cpu_s"]
    began = time.monotonic()
    spin = [box.run("while :; do :; done", timeout=2) for _ in range(2)]
    assert all(result.timed_out for result in await asyncio.gather(*spin))
    used = (await box.stats())["cpu_s"] - before
    assert used < 0.25 * (time.monotonic() - began) + 0.5


async def test_statistics_are_the_sandboxs(box: Sandbox):
    stats = await box.stats()
    assert stats["memory_limit_bytes"] == 64 << 20
    assert 0 <= stats["memory_bytes"] <= 64 << 20
    assert stats["pids"] < 64


async def test_delete_ends_everything_at_once(orchard: Orchard, busybox_root: str):
    box = await orchard.create(busybox_root)
    for _ in range(5):
        await box.start("busybox setsid busybox sleep 1000 & busybox sleep 1000")
    async with asyncio.timeout(60):  # a thousand seconds before they would end by themselves
        await box.delete()


async def test_a_daemon_that_died_of_memory_says_oom(orchard: Orchard, backend: LocalBackend, busybox_root: str):
    """The host itself takes the daemon's memory away: its own control group has no limit otherwise."""
    box = await orchard.create(busybox_root)
    squeeze(box.id)

    async def gone() -> bool:
        with contextlib.suppress(OrchardError):
            await asyncio.gather(*(box.files.write(f"/f{number}", b"x" * 100_000) for number in range(20)))
        return (await backend.get(box.id)).state == "gone"

    await until(gone, 120)
    assert (await backend.get(box.id)).reason == "oom"


async def test_empty_groups_of_a_removed_home_are_known_for_strays(backend: LocalBackend, busybox_root: str):
    groups = find_cgroups()
    assert groups is not None
    info = await backend.create(SandboxSpec(image=busybox_root), "k")
    assert info.id not in groups.strays(0)  # a living one never is
    process = Store(backend.settings.home).read(info.id).process
    assert process is not None
    assert process.kill()
    assert info.id in groups.strays(0)
    assert info.id not in groups.strays(3600)  # a young one might be one that is being made


def squeeze(sandbox_id: str) -> None:
    groups = find_cgroups()
    assert groups is not None
    if groups.version == 2:
        (groups.bases["unified"] / "orchard" / sandbox_id / "daemon" / "memory.max").write_text("1M")
        return
    daemon = groups.bases["memory"] / "orchard" / sandbox_id
    usage = int((daemon / "memory.usage_in_bytes").read_text())
    (daemon / "memory.limit_in_bytes").write_text(str(usage + 65536))
