"""The port proxy is transparent. The server behind it is a real one; a real sandboxd carries the bytes."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend
from yarl import URL

from orchard.core.ids import new_id
from orchard.sandbox.types import SandboxSpec

MIB = 1 << 20
MORE, CLOSED = web.AppKey("more", asyncio.Event), web.AppKey("closed", list)


async def show(request: web.Request) -> web.Response:
    body = await request.read()
    return web.json_response(
        {"method": request.method, "raw": request.raw_path, "headers": dict(request.headers), "size": len(body)}
    )


async def zipped(_: web.Request) -> web.Response:
    return web.Response(body=gzip.compress(b"hello" * 100), headers={"Content-Encoding": "gzip", "X-App": "1"})


async def redirect(_: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/elsewhere")


async def events(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b"data: one\n\n")
    await request.app[MORE].wait()
    await answer.write(b"data: two\n\n")
    return answer


async def big(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": str(256 * MIB)})
    await answer.prepare(request)
    for _ in range(256):
        await answer.write(bytes(MIB))
    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b"only this")
    assert request.transport
    request.transport.abort()
    return answer


async def talk(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=("second", "first"))
    await socket.prepare(request)
    async for message in socket:
        if message.data == "close":
            await socket.close(code=4321, message=b"because")
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str("heard " + message.data)
        else:
            await socket.send_bytes(message.data[::-1])
    request.app[CLOSED].append(socket.close_code)
    return socket


async def odd(_: web.Request) -> web.Response:
    return web.Response(status=999, text="odd")


async def refuse(_: web.Request) -> web.Response:
    return web.Response(status=403, text="not you", headers={"X-Why": "because"})


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[int, web.Application]]:
    app = web.Application(client_max_size=1 << 30)
    app[MORE], app[CLOSED] = asyncio.Event(), []
    for path, handler in (
        ("/gzip", zipped), ("/redirect", redirect), ("/events", events), ("/big", big), ("/cut", cut), ("/ws", talk),
        ("/refuse", refuse), ("/odd", odd), ("/{rest:.*}", show),
    ):  # fmt: skip
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    try:
        yield site._server.sockets[0].getsockname()[1], app  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def proxied(daemon: DaemonBackend) -> AsyncIterator[tuple[aiohttp.ClientSession, str, web.Application]]:
    with threaded(daemon) as url:
        info = await daemon.create(SandboxSpec("x", labels={"orchard/tenant": "default"}), new_id("k"))
        async with serve() as (port, app), aiohttp.ClientSession(url, auto_decompress=False) as http:
            yield http, f"/v1/sandboxes/{info.id}/proxy/{port}", app


async def test_requests_and_answers_pass_as_they_are(daemon: DaemonBackend) -> None:
    async with proxied(daemon) as (http, base, _):
        path = "/a%2Fb/%C3%A9/..%2F/x%20y?q=%26&e"
        async with http.request("PATCH", _url(base + path), data=b"x" * MIB, headers={"X-Mine": "é"}) as answer:
            facts = await answer.json()
        assert facts["raw"] == path
        assert (facts["method"], facts["size"]) == ("PATCH", MIB)
        shown = {name.lower(): value for name, value in facts["headers"].items()}
        assert shown["x-mine"] == "é"
        assert shown["x-forwarded-prefix"] == base
        assert shown["host"].startswith("localhost:")
        async with http.head(base + "/x") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
            assert int(answer.headers["Content-Length"]) > 0
        async with http.get(base + "/gzip") as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(await answer.read()) == b"hello" * 100
            assert answer.headers["X-App"] == "1"
        async with http.get(base + "/redirect", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "http://127.0.0.1:1/elsewhere")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"abc"

        async with http.post(base + "/chunked", data=chunks()) as answer:
            assert (await answer.json())["size"] == 9
        async with http.get(base) as answer:
            assert (await answer.json())["raw"] == "/"
        async with http.get(base, headers={"Connection": "keep-alive, X-Hop", "X-Hop": "1", "X-On": "1"}) as answer:
            names = {name.lower() for name in (await answer.json())["headers"]}
            assert "x-on" in names
            assert "x-hop" not in names
        async with http.get(base + "/odd") as answer:
            assert (answer.status, (await answer.json())["code"]) == (503, "unavailable")


def _url(path: str) -> URL:
    return URL(path, encoded=True)


async def test_a_key_does_not_reach_the_server_but_another_authorization_does(
    daemon: DaemonBackend, keys: tuple
) -> None:
    path, alice, _ = keys
    with threaded(daemon, path) as url:
        info = await daemon.create(SandboxSpec("x", labels={"orchard/tenant": "alice"}), new_id("k"))
        async with serve() as (port, _), aiohttp.ClientSession(url) as http:
            base = f"/v1/sandboxes/{info.id}/proxy/{port}/"
            async with http.get(base, headers={"Authorization": f"Bearer {alice}"}) as answer:
                assert alice not in await answer.text()
            shown = {"X-Orchard-Key": alice, "Authorization": "Basic abc"}
            async with http.get(base, headers=shown) as answer:
                text = await answer.text()
        assert alice not in text
        assert "Basic abc" in text


async def test_events_come_at_once(daemon: DaemonBackend) -> None:
    async with proxied(daemon) as (http, base, app), http.get(base + "/events") as answer:
        assert await asyncio.wait_for(answer.content.readany(), 60) == b"data: one\n\n"
        app[MORE].set()
        assert await asyncio.wait_for(answer.content.read(), 60) == b"data: two\n\n"


async def test_a_large_download_comes_whole_and_a_cut_one_is_seen(
    daemon: DaemonBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(daemon) as (http, base, _):
        got = 0
        async with http.get(base + "/big") as answer:
            async for piece in answer.content.iter_any():
                got += len(piece)
        assert got == 256 * MIB
        with pytest.raises(aiohttp.ClientPayloadError):
            async with http.get(base + "/cut") as answer:
                await answer.read()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_websockets_pass_with_protocol_frames_and_close_codes(daemon: DaemonBackend) -> None:
    async with proxied(daemon) as (http, base, app):
        async with http.ws_connect(base + "/ws", protocols=("first", "third"), max_msg_size=0) as socket:
            assert socket.protocol == "first"
            await socket.send_str("é")
            assert await socket.receive_str() == "heard é"
            data = bytes(range(256)) * 8000
            await socket.send_bytes(data)
            assert await socket.receive_bytes() == data[::-1]
            await socket.send_str("close")
            message = await socket.receive()
            assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 4321, "because")
        async with http.ws_connect(base + "/ws") as socket:
            await socket.close(code=4000, message=b"bye")
        async with asyncio.timeout(60):
            while app[CLOSED][-1:] != [4000]:  # noqa: ASYNC110 - the server's side has no event for it
                await asyncio.sleep(0.02)
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect(base + "/refuse")
        assert caught.value.status == 403
        assert caught.value.headers is not None
        assert caught.value.headers["X-Why"] == "because"


async def test_no_listener_and_no_port_are_told(daemon: DaemonBackend) -> None:
    async with proxied(daemon) as (http, base, _):
        where = base.rpartition("/")[0]
        async with http.get(f"{where}/1/") as answer:
            assert (answer.status, (await answer.json())["reason"]) == (503, "connection_refused")
        for port in ("0", "65536", "x", "-1", "9" * 30):
            async with http.get(f"{where}/{port}/") as answer:
                assert (answer.status, (await answer.json())["field"]) == (400, "port")
