"""A process in a sandbox that stops reading keeps nothing of a client that has gone; one that is slow gets it all."""

import asyncio
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend
from tests.support.waiting import until
from websockets.asyncio.client import connect as websocket
from yarl import URL

from orchard.core.ids import new_id
from orchard.sandbox.types import SandboxSpec
from orchard.service.upstream import connect

PIECE = bytes(1 << 15)
SECONDS_FULL = 0.5  # that what was sent lies unread, until it is taken for sent in vain
TCP_REPAIR = 19
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class Deaf:
    """A server that answers one head, if one is to come, and reads no more until it is woken."""

    def __init__(self, heads: bool) -> None:
        self.woken, self.ended = asyncio.Event(), asyncio.Event()
        self.got, self._heads = 0, heads

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._heads:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(UPGRADED)
        await self.woken.wait()
        try:
            while data := await reader.read(1 << 16):
                self.got += len(data)
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        self.ended.set()
        writer.close()


class Client(NamedTuple):
    """One that sends, on whatever way."""

    send: Callable[[bytes], Awaitable[None]]
    transport: asyncio.WriteTransport


@asynccontextmanager
async def deaf(daemon: DaemonBackend, heads: bool = False) -> AsyncIterator[tuple[Deaf, URL]]:
    """A deaf server, and the URL of its sandbox at a service."""
    with threaded(daemon) as url:
        info = await daemon.create(SandboxSpec("x", labels={"orchard/tenant": "default"}), new_id("k"))
        inside = Deaf(heads)
        async with await asyncio.start_server(inside.serve, "127.0.0.1", 0) as server:
            yield inside, URL(f"{url}/v1/sandboxes/{info.id}").with_fragment(str(server.sockets[0].getsockname()[1]))
            inside.woken.set()


@asynccontextmanager
async def upload(base: URL) -> AsyncIterator[Client]:
    """The body of a request through the port proxy."""
    _, writer = await asyncio.open_connection(base.host, base.port)
    head = f"PUT {base.path}/proxy/{base.fragment}/ HTTP/1.1\r\nHost: {base.authority}\r\nContent-Length: {1 << 40}"
    writer.write(f"{head}\r\n\r\n".encode())

    async def send(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    yield Client(send, writer.transport)
    writer.transport.abort()


@asynccontextmanager
async def messages(base: URL, room: str) -> AsyncIterator[Client]:
    """A WebSocket."""
    where = base.with_scheme("ws").with_path(f"{base.path}/{room}/{base.fragment}")
    async with websocket(str(where), ping_interval=None, close_timeout=0.1, compression=None) as peer:
        yield Client(peer.send, peer.transport)


def tunnel(base: URL) -> AbstractAsyncContextManager[Client]:
    return messages(base, "ports")


def proxied(base: URL) -> AbstractAsyncContextManager[Client]:
    return messages(base, "proxy")


def unread(client: Client) -> int:
    """How much of what a client sent lies at the service, not read yet."""
    ours, theirs = (client.transport.get_extra_info(each)[1] for each in ("sockname", "peername"))
    row = re.search(rf":{theirs:04X} \w+:{ours:04X} \w\w \w+:(\w+)", Path("/proc/net/tcp").read_text(encoding="ascii"))
    return int(row[1], 16) if row else 0


async def fill(client: Client) -> int:
    """Send until the service takes no more, and no further; return how much was sent."""
    sent = 0
    while True:
        async with asyncio.timeout(60):
            await client.send(PIECE)
        sent += len(PIECE)
        try:
            await until(lambda: client.transport.get_write_buffer_size() == unread(client) == 0, SECONDS_FULL)
        except TimeoutError:
            return sent


def close(client: Client) -> None:
    client.transport.close()


def reset(client: Client) -> None:
    client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


def vanish(client: Client) -> None:
    """Be gone without a word, as a machine that fails."""
    try:
        client.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        pytest.skip("only root can close a connection without a word")
    client.transport.abort()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.core.connections.SILENT", 0.2)
    monkeypatch.setattr("orchard.service.upstream._PROMPT", 0.05)
    soon = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1))
    monkeypatch.setattr("orchard.service.server._KEEPALIVE", soon)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("way", "leave"),
    [(way, leave) for way in (upload, tunnel, proxied) for leave in (close, reset)] + [(upload, vanish)],
)
async def test_a_client_that_leaves_a_process_that_hangs_is_done_with(
    daemon: DaemonBackend, caplog: pytest.LogCaptureFixture,
    way: Callable[[URL], AbstractAsyncContextManager[Client]], leave: Callable[[Client], None],
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "orchard.service")
    async with deaf(daemon, heads=way is proxied) as (inside, base), way(base) as client:
        await fill(client)
        assert not caplog.messages
        leave(client)
        await until(lambda: bool(caplog.messages), 30)
        inside.woken.set()
        async with asyncio.timeout(30):
            await inside.ended.wait()
    assert [record.levelname for record in caplog.records] == ["INFO"], caplog.messages
    assert (" 499 " if way is upload else " 101 ") in caplog.messages[0]


@pytest.mark.usefixtures("quick")
async def test_a_process_that_pauses_is_waited_for_while_its_client_is_there(daemon: DaemonBackend) -> None:
    async with deaf(daemon) as (inside, base), tunnel(base) as client:
        sent = await fill(client)
        await asyncio.sleep(1.5)  # several times what would be too long without the client
        inside.woken.set()
        await client.send(PIECE)
        await client.send(b"")
        async with asyncio.timeout(60):
            await inside.ended.wait()
        assert inside.got == sent + len(PIECE)


async def test_a_slow_process_gets_all_of_a_client_that_has_left(
    daemon: DaemonBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.service.upstream._PROMPT", 0.001)
    async with deaf(daemon) as (inside, base):
        async with tunnel(base) as client:
            sent = await fill(client)
            await client.send(b"")
        inside.woken.set()
        async with asyncio.timeout(60):
            await inside.ended.wait()
        assert inside.got == sent


@pytest.mark.usefixtures("quick")
async def test_a_connection_that_is_closed_does_not_wait_for_a_peer_that_hangs() -> None:
    inside = Deaf(heads=False)
    async with await asyncio.start_server(inside.serve, "127.0.0.1", 0) as server:
        connection = await connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connection.writer.write(bytes(64 << 20))
        async with asyncio.timeout(30):
            await connection.drained()
        inside.woken.set()
        await inside.ended.wait()
        assert inside.got < 64 << 20
