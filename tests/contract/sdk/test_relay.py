"""Ports both ways round: reverse, tunnel, forward."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.daemon import DaemonBackend
from tests.support.waiting import cancelled_after, until

from orchard.core.errors import InvalidArgument, NotFound
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.conformance.faulty import NONE, Fault, faulty
from orchard.sandbox.relay import IDLE
from orchard.sandbox.tunnel import dial

ECHO = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def serve(peer):
    got = b""
    while data := peer.recv(65536):
        got += data
    peer.sendall(got[::-1])
    peer.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
CLIENT = """
import hashlib, socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 120)
peer.sendall(sys.argv[2].encode() * int(sys.argv[3]))
peer.shutdown(socket.SHUT_WR)
got = b""
while data := peer.recv(65536):
    got += data
print(hashlib.sha256(got).hexdigest(), len(got), flush=True)
"""


@asynccontextmanager
async def echo_here(path: Path | None = None) -> AsyncIterator[str]:
    """A server of this process that answers with what it got, once its client's half has ended."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        writer.write(b"<" + got + b">")
        await writer.drain()
        writer.close()

    if path:
        server = await asyncio.start_unix_server(serve, str(path))
        target = f"unix:{path}"
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield target


async def ask(box: Sandbox, port: int, text: str = "x", times: int = 1) -> int:
    result = await box.run(["python3", "-c", CLIENT, str(port), text, str(times)])
    return int(result.check().text.split()[1])


async def test_reverse_carries_many_connections_whole(box: Sandbox) -> None:
    async with echo_here() as target, box.reverse(0, target) as reverse:
        sizes = await asyncio.gather(*(ask(box, reverse.port, "x", 1 << 20) for _ in range(20)))
        assert sizes == [(1 << 20) + 2] * 20
        again = await box.run(["python3", "-c", CLIENT, str(reverse.port), "y", "3"])
        assert again.exit_code == 0
    ended = await box.run(["python3", "-c", CLIENT, str(reverse.port), "y", "3"])
    assert ended.exit_code == 1
    assert "refused" in ended.error_text


async def test_reverse_to_a_unix_socket(box: Sandbox, short_path: Path) -> None:
    async with echo_here(short_path / "target") as target, box.reverse(0, target) as reverse:
        assert await ask(box, reverse.port, "abc") == 5


async def test_a_target_that_is_down_closes_the_connection(box: Sandbox) -> None:
    async with box.reverse(0, "tcp:127.0.0.1:1") as reverse:
        down = await box.run(["python3", "-c", CLIENT, str(reverse.port), "a", "1"], timeout=200)
        assert (
            down.text.endswith(" 0\n") or "ConnectionResetError" in down.error_text or "BrokenPipe" in down.error_text
        )
        async with echo_here() as target, box.reverse(0, target) as other:
            assert await ask(box, other.port) == 3


async def length_of_carriers_head(daemon: DaemonBackend, box: Sandbox, port: int) -> int:
    """Bytes of sandboxd's answer to a carrier until it waits for a connection."""
    endpoint = daemon.endpoints[box.id]
    reader, writer = await asyncio.open_unix_connection(endpoint.base.removeprefix("unix:"))
    headers = {"Host": "x", "Connection": "Upgrade", "Upgrade": "tcp", **endpoint.headers}
    lines = [f"GET /v1/reverse/{port}/carry HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 101 ")
    return len(head)


async def test_carriers_that_break_are_replaced_and_lose_no_connection(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path
) -> None:
    async with echo_here() as target, box.reverse(0, target) as reverse:
        head = await length_of_carriers_head(daemon, box, reverse.port)
    true = daemon.endpoints[box.id]

    def fault(number: int) -> Fault:
        """Broken within the answer, right behind it, or behind the byte by which a connection is handed over."""
        return NONE if number % 4 == 3 else Fault(cut_answer=(20, head, head + 1)[number % 4])

    async with faulty(true.base, fault, short_path / "proxy") as (proxy, address):
        daemon.endpoints[box.id] = replace(true, base=address)
        other = await orchard.attach(box.id)
        async with echo_here() as target, other.reverse(0, target) as reverse:
            assert [await ask(box, reverse.port) for _ in range(6)] == [3] * 6
        assert proxy.injected["cut_answer"] > 0
        await other.close()
        daemon.endpoints[box.id] = true


async def test_reverse_ends_with_its_task_group(box: Sandbox) -> None:
    before = asyncio.all_tasks()
    async with echo_here() as target:
        with pytest.raises(ZeroDivisionError):
            async with box.reverse(0, target):
                raise ZeroDivisionError
        running = asyncio.ensure_future(hold(box, target))
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until(lambda: not asyncio.all_tasks() - before)


async def hold(box: Sandbox, target: str) -> None:
    async with box.reverse(0, target):
        await asyncio.sleep(60)


@contextmanager
def deaf() -> Iterator[str]:
    """A listener whose queue is full: to dial it takes for ever."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield f"tcp:127.0.0.1:{server.getsockname()[1]}"


async def test_leaving_a_reverse_block_ends_a_connection_whose_target_is_still_dialled(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    carriers: list[asyncio.StreamWriter] = []

    async def dialled(base: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await dial(base)
        carriers.append(writer)
        return reader, writer

    monkeypatch.setattr("orchard.sandbox.tunnel.dial", dialled)
    with deaf() as target:
        async with box.reverse(0, target) as reverse:
            inside = await box.start(["python3", "-c", CLIENT, str(reverse.port), "a", "1"])
            await until(lambda: reverse._busy == 1)
        await inside.result()
    assert len(carriers) >= IDLE
    assert [each for each in carriers if not each.is_closing()] == []


async def test_leaving_a_forward_block_ends_a_connection_that_does_not_lead_inside_yet(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path
) -> None:
    true = daemon.endpoints[box.id]
    async with faulty(true.base, lambda _: Fault(delay=60), short_path / "proxy") as (proxy, address):
        daemon.endpoints[box.id] = replace(true, base=address)
        other = await orchard.attach(box.id)
        before = proxy.connections
        async with other.forward(8000) as local:
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            await until(lambda: proxy.connections > before)
        async with asyncio.timeout(30):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        await other.close()
        daemon.endpoints[box.id] = true


async def test_a_forward_block_that_is_cancelled_on_entering_listens_no_more(box: Sandbox) -> None:
    async def use() -> None:
        async with box.forward(8000):
            await asyncio.get_running_loop().create_future()

    def listening() -> set[str]:
        return set(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = listening()
    for steps in range(12):
        await cancelled_after(steps, use())
        await until(lambda: listening() <= before)


async def test_urls_asked_for_at_once_are_one_that_works(box: Sandbox) -> None:
    server = await box.start(["python3", "-u", "-c", ECHO])
    port = int(await anext(server.lines()))
    urls = await asyncio.gather(*(box.url(port) for _ in range(8)))
    assert urls == [await box.url(port)] * 8
    local = urlsplit(urls[0]).port
    reader, writer = await asyncio.open_connection("127.0.0.1", local)
    writer.write(b"abc")
    writer.write_eof()
    assert await reader.read() == b"cba"
    writer.close()
    await server.kill()
    await asyncio.gather(box.close(), box.close())
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", local)


@pytest.mark.parametrize("target", ["127.0.0.1:9000", "ftp://x:1", "tcp:host", "unix:relative", "http://x:99999"])
async def test_targets_are_checked(box: Sandbox, target: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        box.reverse(8000, target)
    assert caught.value.field == "target"


async def test_tunnel_and_forward_reach_a_port_inside(box: Sandbox) -> None:
    server = await box.start(["python3", "-u", "-c", ECHO])
    port = int(await anext(server.lines()))
    tunnel = await box.tunnel(port, wait=5)
    await tunnel.write(b"abc")
    await tunnel.write_eof()
    assert await tunnel.read() == b"cba"
    assert await tunnel.read() == b""
    await tunnel.close()
    data = os.urandom(3 << 20)
    async with box.forward(port) as local:
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data[::-1]
        writer.close()
    await server.kill()
    with pytest.raises(NotFound) as caught:
        await box.tunnel(port)
    assert caught.value.reason == "connection_refused"
