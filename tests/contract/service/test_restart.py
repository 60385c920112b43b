"""A service that dies, stops, or comes back, over the real local backend."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.support.service import Served, served

from orchard.core.errors import QuotaExceeded
from orchard.sandbox import Orchard
from orchard.sandbox.conformance.roots import special_images
from orchard.sandbox.remote import RemoteBackend
from orchard.sandbox.types import State
from orchard.service.keys import KeyRing

pytestmark = pytest.mark.slow


@pytest.fixture
def own(local_home: Path) -> Iterator[Served]:
    """A service of the test's own."""
    with served(local_home, "--allow-host-images") as running:
        yield running


@asynccontextmanager
async def patient(own: Served) -> AsyncIterator[Orchard]:
    """One whose creates outlast a restart on a machine so busy that it takes minutes."""
    backend = RemoteBackend(own.url, api_key=own.key, retry_window=250)
    async with Orchard(backend=backend) as orchard:
        yield orchard
    await backend.close()


async def test_a_kill_9_and_a_restart_lose_nothing(own: Served, busybox: str) -> None:
    async with Orchard(own.url, api_key=own.key) as orchard:
        free = await orchard.create(busybox, ttl=300, labels={"kept": "yes"})
        async with orchard.sandbox(busybox) as owned:
            script = "echo x >> /tmp/f; sleep 4; cat /tmp/f; echo end"
            runs = [asyncio.create_task(box.run(script, timeout=60)) for box in (free, owned)]
            await asyncio.sleep(1)
            own.end(signal.SIGKILL)
            await asyncio.sleep(1)
            await asyncio.to_thread(own.start)
            for result in await asyncio.gather(*runs):
                assert result.stdout == b"x\nend\n"
            assert [box.id for box in await orchard.list({"kept": "yes"})] == [free.id]
            assert (await owned.run("echo here")).stdout == b"here\n"
        await free.delete()


async def test_a_create_that_a_crash_interrupts_makes_one_sandbox(own: Served, busybox: str) -> None:
    async with patient(own) as orchard:
        await orchard.list()
        creates = [asyncio.create_task(orchard.create(busybox, ttl=120, key=f"k{number}")) for number in range(6)]
        await asyncio.sleep(0.1)
        own.end(signal.SIGKILL)
        await asyncio.to_thread(own.start)
        boxes = await asyncio.gather(*creates)
        assert {box.id for box in boxes} == {info.id for info in await orchard.list()}
        for box in boxes:
            assert (await box.run("true")).ok
            await box.delete()


async def test_sigterm_ends_streams_soon_and_leaves_the_sandboxes(own: Served, busybox: str) -> None:
    async with (
        aiohttp.ClientSession(own.url, headers=own.auth) as http,
        Orchard(own.url, api_key=own.key) as orchard,
    ):
        box = await orchard.create(busybox, ttl=300)
        process = await box.start("sleep 100")
        stream = await http.get(f"/v1/sandboxes/{box.id}/processes/{process.id}/stream?mode=full")
        await stream.content.readany()
        async with http.post(f"/v1/sandboxes/{box.id}/reverse/9000") as answer:
            assert answer.status == 201
        tunnel = await http.ws_connect(f"/v1/sandboxes/{box.id}/reverse/9000/carry")
        assert await asyncio.to_thread(own.end) == 0
        assert "timeout graceful shutdown exceeded" not in own.log.read_text(), (
            "a stream that would go on was waited for"
        )
        await stream.read()  # ends as a whole answer, without an exit frame
        assert (await tunnel.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        await asyncio.to_thread(own.start)
        assert (await orchard.get(box.id)).state is State.READY
        status = await process.poll()
        assert status is None
        await box.delete()


async def test_a_quota_lets_the_retry_of_a_create_through_after_a_crash(own: Served, busybox: str) -> None:
    key = KeyRing(own.keys).add("small", quota=1)
    await asyncio.sleep(1.1)
    async with Orchard(own.url, api_key=key) as orchard:
        box = await orchard.create(busybox, ttl=120, key="k")
        own.end(signal.SIGKILL)
        await asyncio.to_thread(own.start)
        assert (await orchard.create(busybox, ttl=120, key="k")).id == box.id
        with pytest.raises(QuotaExceeded):
            await orchard.create(busybox, ttl=120)
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            aiohttp.ClientSession(own.url, headers=headers) as http,
            http.delete("/v1/creates/k") as answer,
        ):
            assert answer.status == 204
        assert await orchard.list() == []


async def test_a_create_under_way_survives_a_restart_by_sigterm(own: Served, busybox: str) -> None:
    async with patient(own) as orchard:
        await orchard.list()
        creates = [asyncio.create_task(orchard.create(busybox, ttl=120, key=f"s{number}")) for number in range(12)]
        await asyncio.sleep(0.05)
        assert await asyncio.to_thread(own.end) == 0
        await asyncio.to_thread(own.start)
        boxes = await asyncio.gather(*creates)
        assert sorted(box.id for box in boxes) == sorted(info.id for info in await orchard.list())
        await asyncio.gather(*(box.delete() for box in boxes))


async def test_a_commit_whose_answer_a_restart_lost_is_answered_again(own: Served, tmp_path: Path) -> None:
    async with Orchard(own.url, api_key=own.key) as orchard:
        box = await orchard.create(special_images(tmp_path)["busybox"], ttl=120)
        await box.run("echo kept > /made")
        digest = await box.commit("once")
        own.end(signal.SIGKILL)
        await asyncio.to_thread(own.start)
        assert await box.commit("once") == digest
        async with orchard.sandbox(digest) as child:
            assert (await child.run("cat /made")).text == "kept\n"
