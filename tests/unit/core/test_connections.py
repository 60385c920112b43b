"""Connections of clients end, whatever their peer does: over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from tests.support.waiting import until

from orchard.core.connections import that_end


@pytest.fixture
def deaf() -> Iterator[str]:
    """Takes connections, and never reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.core.connections.SILENT", 0.2)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=that_end(aiohttp.TCPConnector(limit=0))) as session:
        yield session


def sockets() -> set[str]:
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if (where := str(each.readlink())).startswith("socket:"):
                found.add(where)
    return found


async def stuck(http: aiohttp.ClientSession, url: str) -> asyncio.Task[aiohttp.ClientResponse]:
    """A request whose peer takes no more: all buffers on its way are full."""
    handed = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal handed
        while True:
            handed += 1
            yield b"x" * (1 << 18)

    async def takes_no_more() -> bool:
        before = handed
        await asyncio.sleep(0.3)
        return before == handed > 0

    task = asyncio.ensure_future(http.post(url, data=body()))
    await until(takes_no_more)
    return task


async def test_a_request_that_is_given_up_leaves_no_connection_to_a_peer_that_hangs(
    http: aiohttp.ClientSession, deaf: str
) -> None:
    before = sockets()
    task = await stuck(http, deaf)
    assert len(sockets() - before) == 1
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: not sockets() - before, seconds=20)


async def test_closing_a_session_does_not_wait_for_a_peer_that_hangs(http: aiohttp.ClientSession, deaf: str) -> None:
    task = await stuck(http, deaf)
    async with asyncio.timeout(20):
        await http.close()
    with pytest.raises(aiohttp.ClientError):
        await task


async def test_a_peer_that_reads_slowly_gets_all_that_was_sent_before_the_close(http: aiohttp.ClientSession) -> None:
    got, ended = bytearray(), asyncio.Event()

    async def slowly(request: web.Request) -> web.WebSocketResponse:
        peer = web.WebSocketResponse(max_msg_size=0)
        await peer.prepare(request)
        async for message in peer:
            got.extend(message.data)
            await asyncio.sleep(0.05)
        ended.set()
        return peer

    app = web.Application()
    app.router.add_get("/", slowly)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    soon = aiohttp.ClientWSTimeout(ws_close=0.1)  # pyright: ignore[reportCallIssue] - its fields are hidden
    peer = await http.ws_connect(url, timeout=soon)
    for _ in range(100):
        await peer.send_bytes(b"x" * 100_000)
    await peer.close()
    async with asyncio.timeout(60):
        await ended.wait()
    assert len(got) == 100 * 100_000
    await runner.cleanup()
