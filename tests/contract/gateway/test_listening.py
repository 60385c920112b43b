"""A gateway whose start, or whose session's start, is cut off listens nowhere."""

import asyncio
import errno
import os
import socket
from asyncio.base_events import Server
from collections.abc import Coroutine
from typing import Any

import pytest

from orchard.gateway import Gateway, GatewayConfig, ScriptEngine
from orchard.gateway import server as module
from orchard.trajectories import Store


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


async def cut(work: Coroutine[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do ``work``, and cancel it as soon as it listens."""
    listen, task = Server._start_serving, asyncio.ensure_future(work)  # pyright: ignore[reportAttributeAccessIssue]

    def then_cancelled(self: Server) -> None:
        listen(self)
        asyncio.get_running_loop().call_soon(task.cancel)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "_start_serving", then_cancelled)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_gateway_whose_start_is_cancelled_leaves_its_port(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GatewayConfig(port=free_port())
    await cut(Gateway(store, {}, config).__aenter__(), monkeypatch)
    async with Gateway(store, {}, config):
        pass  # it would be refused


async def test_a_gateway_that_has_no_place_for_sockets_leaves_its_port(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    config = GatewayConfig(port=free_port())
    with monkeypatch.context() as patch:
        patch.setattr(module, "SocketFolder", full)
        with pytest.raises(OSError, match="No space left"):
            await Gateway(store, {}, config).__aenter__()
    async with Gateway(store, {}, config):
        pass


async def test_a_session_whose_start_is_cancelled_has_no_socket(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Gateway(store, {"s": ScriptEngine(["hi"])}) as gateway:
        await cut(gateway.open_session(), monkeypatch)
        assert gateway._sockets is not None
        assert list(gateway._sockets.path.glob("*.sock")) == []
        assert [*gateway._sessions, *gateway._keys, *gateway._by_socket, *gateway._servers] == []
        session = await gateway.open_session()
        assert gateway._sessions == {session.id: session}
