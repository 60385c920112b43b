"""A sandbox whose node has died: its connections break for nobody, and no answer ever comes."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import aiohttp
import pytest
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend
from tests.support.waiting import until

from orchard.core.ids import new_id
from orchard.sandbox.types import SandboxSpec
from orchard.service.upstream import connect

TCP_REPAIR = 19
SPEC = SandboxSpec("x", labels={"orchard/tenant": "default"})
ASKED = [
    ("POST", "extend", {"ttl": 60}), ("POST", "access", None), ("GET", "lease", None),
    ("POST", "lease", {"heartbeat": True}), ("GET", "stats", None), ("GET", "health", None), ("GET", "processes", None),
]  # fmt: skip


@contextmanager
def mute() -> Iterator[tuple[str, threading.Event]]:
    """A server that takes connections and reads nothing, and what is set once it has one."""
    asked, taken = threading.Event(), list[socket.socket]()

    def take() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return
            asked.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)
            for each in taken:
                each.close()


@pytest.mark.parametrize("known", [False, True], ids=["not known yet", "known"])
@pytest.mark.parametrize(("method", "room", "body"), ASKED, ids=lambda value: str(value))
async def test_what_is_answered_at_once_is_not_waited_for(
    daemon: DaemonBackend, monkeypatch: pytest.MonkeyPatch, method: str, room: str, body: object, known: bool
) -> None:
    monkeypatch.setattr("orchard.service.datapath._ANSWER_SECONDS", 4.0 if known else 0.5)  # its end is told by then
    info = await daemon.create(SPEC, new_id("k"))
    with mute() as (address, asked), threaded(daemon) as url:
        daemon.endpoints[info.id] = replace(daemon.endpoints[info.id], base=address)
        where, key = f"{url}/v1/sandboxes/{info.id}/{room}", {"Idempotency-Key": new_id("k")}
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):

            async def ask() -> tuple[int, str, str]:
                async with http.request(method, where, json=body, headers=key) as answer:
                    told = await answer.json()
                    return answer.status, told["code"], told["reason"]

            asking = asyncio.create_task(ask())
            assert await asyncio.to_thread(asked.wait, 60)
            if known:
                daemon.kill(info.id)
            status, code, reason = await asking
            assert (status, code) == ((410, "sandbox_gone") if known else (503, "unavailable"))
            if known:
                assert reason == "signal"
            else:
                assert (await ask())[0] == 503  # under the same key, it joins nothing that hangs


@pytest.mark.parametrize("where", ["ports/8000", "proxy/8000/", "reverse/8000/carry"])
async def test_a_tunnel_that_does_not_open_is_not_waited_for(
    daemon: DaemonBackend, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("orchard.service.tunnels._OPEN_SECONDS", 4.0)
    info = await daemon.create(SPEC, new_id("k"))
    with mute() as (address, asked), threaded(daemon) as url:
        daemon.endpoints[info.id] = replace(daemon.endpoints[info.id], base=address)
        way = f"{url.replace('http', 'ws', 1)}/v1/sandboxes/{info.id}/{where}"
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            opening = asyncio.ensure_future(http.ws_connect(way))
            assert await asyncio.to_thread(asked.wait, 60)
            daemon.kill(info.id)
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await opening
        assert caught.value.status == 410


async def test_a_connection_that_rests_ends_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1))
    monkeypatch.setattr("orchard.service.upstream._KEEPALIVE", soon)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = await connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        peer, _ = listener.accept()
        try:
            peer.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)  # closed, it says no word
        except PermissionError:
            pytest.skip("only root can close a connection without a word")
        finally:
            peer.close()
        await until(lambda: connection.writer.is_closing() or connection.reader.at_eof(), 30)
        connection.abort()
