"""The data path over the real local backend: what passes, what stays, and how much memory it takes."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.support.service import Served
from tests.support.waiting import until

from orchard.core.errors import FileIsFolder, FileMissing
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.transport import Call

pytestmark = pytest.mark.slow

MIB = 1 << 20
FLAT = 48 * MIB


@pytest.fixture
async def box(orchard: Orchard, busybox: str) -> AsyncIterator[Sandbox]:
    async with orchard.sandbox(busybox) as made:
        yield made


def peak(service: Served, *, reset: bool = False) -> int:
    """The service's peak memory in bytes; ``reset`` begins a new peak."""
    process = Path(f"/proc/{service.process.pid}")
    if reset:
        (process / "clear_refs").write_text("5")
    match = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    assert match
    return int(match[1]) * 1024


def open_files(service: Served) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


async def zeros(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // MIB):
        yield bytes(MIB)


async def test_commands_streams_and_files_are_as_without_a_service(box: Sandbox) -> None:
    result = await box.run("printf 'a\\0\\377'; printf err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"a\0\xff", b"err", 3)
    process = await box.start("cat; echo done", stdin=True)
    await process.send(b"x" * 100_000)
    await process.close_stdin()
    data = b"".join([event.data async for event in process])
    assert data == b"x" * 100_000 + b"done\n"
    content = bytes(range(256)) * 4096
    await box.files.write("/tmp/a b%2Fc/é\n.bin", content)
    assert await box.files.read("/tmp/a b%2Fc/é\n.bin", offset=1000, length=10) == content[1000:1010]
    with pytest.raises(FileMissing):
        await box.files.read("/nope")
    with pytest.raises(FileIsFolder):
        await box.files.write("/tmp", zeros(4 * MIB))
    assert (await box.run("true")).ok


async def test_heads_statuses_ranges_and_trailers_pass(
    box: Sandbox, service: Served, http: aiohttp.ClientSession
) -> None:
    await box.files.write("/tmp/tree/f", b"0123456789")
    await box.run("mkfifo /tmp/tree/pipe")
    base = f"/v1/sandboxes/{box.id}"
    async with http.get(f"{base}/files?path=/tmp/tree/f", headers={"Range": "bytes=2-4"}) as answer:
        assert (answer.status, await answer.read()) == (206, b"234")
        assert answer.headers["Content-Range"] == "bytes 2-4/10"
        assert answer.headers["Orchard-Sandbox"] == box.id
        assert "Orchard-Version" not in answer.headers
    async with http.get(f"{base}/files?path=/tmp/tree/f", headers={"Range": "bytes=99-"}) as answer:
        assert answer.status == 416
    async with http.put(f"{base}/files?path=/tmp/x&sha256={'0' * 64}", data=b"abc") as answer:
        assert answer.status == 400
    host, _, port = service.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET {base}/tree?path=/tmp/tree HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: Bearer {service.key}\r\n\r\n".encode()
    )
    whole = await reader.read()
    writer.close()
    assert b"pipe" in re.split(rb"\r\n0\r\n", whole)[-1]
    assert whole.endswith(b"\r\n\r\n")


async def test_what_leaves_the_service_holds_no_token(box: Sandbox, http: aiohttp.ClientSession) -> None:
    reply = await box.transport.request(Call("GET", "/health"))
    assert set(reply.json()) >= {"id", "uptime_s"}
    assert not [name for name in reply.headers if name.lower() in ("authorization", "orchard-version")]
    for path in ("/tokens", "/shutdown"):
        async with http.post(f"/v1/sandboxes/{box.id}{path}", json={}) as answer:
            assert answer.status == 404
    assert (await box.run("true")).ok


async def test_files_go_both_ways_in_flat_memory(box: Sandbox, service: Served, http: aiohttp.ClientSession) -> None:
    size = 256 * MIB
    before = peak(service, reset=True)
    await box.files.write("/tmp/big", zeros(size))
    digest = (await box.run("sha256sum /tmp/big")).text.split()[0]
    assert digest == hashlib.sha256(bytes(size)).hexdigest()
    got = 0
    async with http.get(f"/v1/sandboxes/{box.id}/files?path=/tmp/big") as answer:
        async for piece in answer.content.iter_any():
            got += len(piece)
    assert got == size
    assert peak(service) - before < FLAT


async def test_a_reader_that_stands_still_costs_no_memory(
    box: Sandbox, service: Served, http: aiohttp.ClientSession
) -> None:
    process = await box.start("cat /dev/zero", timeout=None)
    before = peak(service, reset=True)
    async with http.get(f"/v1/sandboxes/{box.id}/processes/{process.id}/stream?mode=full") as answer:
        await answer.content.readany()
        await asyncio.sleep(1)
        assert (await box.run("echo x")).stdout == b"x\n"
        assert (await process.poll()) is None, "the reader stood still all the while"
    assert peak(service) - before < FLAT
    await process.kill()


async def test_a_client_that_leaves_ends_the_request_in_the_sandbox(box: Sandbox, http: aiohttp.ClientSession) -> None:
    body = {"id": "left", "argv": ["sleep", "60"], "kill_on_disconnect": True}
    async with http.post(f"/v1/sandboxes/{box.id}/processes?stream=full", json=body) as answer:
        await answer.content.readany()
    process = await box.attach("left")
    status = await process.wait(60)
    assert status.cancelled or status.signal == "KILL"


async def test_two_hundred_aborted_requests_leave_nothing_stuck(
    box: Sandbox, service: Served, http: aiohttp.ClientSession
) -> None:
    await box.run("true")

    async def aborted(number: int) -> None:
        call = http.post(f"/v1/sandboxes/{box.id}/processes?stream=full", json={"id": f"a{number}", "argv": ["true"]})
        try:
            async with asyncio.timeout(number % 20 / 1000):
                async with call as answer:
                    await answer.read()
        except TimeoutError:
            return

    before = open_files(service)
    await asyncio.gather(*(aborted(number) for number in range(200)))
    await until(lambda: open_files(service) < before + 40)
    assert (await box.run("echo fine")).stdout == b"fine\n"


async def test_tunnels_carry_bytes_both_ways_with_half_close(box: Sandbox) -> None:
    await box.start("nc -l -p 7000 -e cat")
    tunnel = await box.transport.tunnel(Call("GET", "/ports/7000", "wait=60"))
    data = bytes(range(256)) * 4096

    async def send() -> None:
        for start in range(0, len(data), 60_000):
            await tunnel.write(data[start : start + 60_000])
        await tunnel.write_eof()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        got = b""
        while piece := await tunnel.read():
            got += piece
    assert got == data
    await tunnel.close()


async def test_a_port_in_the_sandbox_leads_out_through_the_service(box: Sandbox) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, box.reverse(9000, f"tcp:127.0.0.1:{port}"):
        for number in range(3):
            result = await box.run(f"echo hello{number} | nc 127.0.0.1 9000")
            assert result.text == f"heard hello{number}\n"


async def test_a_slow_reader_inside_gets_all_that_was_sent_before_the_other_side_closed(box: Sandbox) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # the other half has ended first
        writer.write(bytes(16 << 20))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, box.reverse(9000, f"tcp:127.0.0.1:{port}"):
        result = await box.run("nc 127.0.0.1 9000 </dev/null | (sleep 2; wc -c)")
    assert int(result.text) == 16 << 20


async def test_a_websocket_elsewhere_is_refused(box: Sandbox, http: aiohttp.ClientSession) -> None:
    for path, status in (("processes", 404), ("files", 404), ("ports/81", 404), ("ports/x", 400)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect(f"/v1/sandboxes/{box.id}/{path}")
        assert caught.value.status == status, path


async def test_three_hundred_commands_at_once_are_not_capped(box: Sandbox) -> None:
    running = [asyncio.ensure_future(box.run(["sleep", "600"])) for _ in range(300)]

    async def all_run() -> bool:
        return sum(status.running for status in await box.processes()) == 300

    await until(all_run)
    await box.run("while killall sleep; do cat /dev/null; done")  # until there is none, also of those that began late
    assert {result.signal for result in await asyncio.gather(*running)} == {"TERM"}


SERVER = "while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\ninside\\n' | nc -l -p 8000; done"


async def test_a_server_inside_has_a_url_through_the_service_and_without(
    box: Sandbox, http: aiohttp.ClientSession, image_home: Path
) -> None:
    await box.start(SERVER)
    (await box.tunnel(8000, wait=60)).abort()
    backend = LocalBackend(LocalSettings(home=image_home))
    async with Orchard(backend=backend) as direct, aiohttp.ClientSession() as plain:
        beside = await direct.attach(box.id)
        for client, url in ((http, await box.url(8000)), (plain, await beside.url(8000))):
            async with asyncio.timeout(60):
                while True:
                    try:
                        async with client.get(url) as answer:
                            text = await answer.text()
                        if answer.status == 200:
                            break
                    except aiohttp.ClientError:
                        pass  # between two connections nobody listens
                    await asyncio.sleep(0.05)
            assert text == "inside\n"
        assert await beside.url(8000) == await beside.url(8000)
        await beside.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await plain.get(url)
    await backend.close()
