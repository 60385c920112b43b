"""HTTP connections that end: one of aiohttp's that is closed while its peer reads nothing stays open for ever.

Those of TLS hand what is left to the plain connection below, which asyncio cuts after 30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import aiohttp
from aiohttp.client_proto import ResponseHandler

SILENT = 30.0  # seconds without a byte taken, until a connection that was closed is cut; up to twice as long in effect

C = TypeVar("C", bound=aiohttp.BaseConnector)
_ending: set[asyncio.Task[None]] = set()


def that_end(connector: C) -> C:
    """Return ``connector``, whose connections, once closed, send what is left only as long as their peer takes it.

    So a request that is given up keeps no connection to a peer that hangs, and closing the session waits for none.
    """
    handler: partial[ResponseHandler] = partial(_Handler, loop=asyncio.get_running_loop())
    connector._factory = handler  # pyright: ignore[reportPrivateUsage] - there is no public way to name it
    return connector


class _Handler(ResponseHandler):
    def close(self) -> None:
        transport = self.transport
        super().close()
        if transport is not None and transport.get_write_buffer_size():
            task = self._loop.create_task(_end(transport))
            _ending.add(task)
            task.add_done_callback(_ending.discard)


async def cut_when_silent(transport: asyncio.WriteTransport, wanted: Callable[[], bool] = lambda: False) -> None:
    """Cut a connection whose peer takes nothing of what is left to send; return then, or once nothing is left.

    Args:
        transport: the connection.
        wanted: whether somebody waits for what is left to be taken; so long silence is no reason.
    """
    left = transport.get_write_buffer_size()
    while left:
        waited_for = wanted()
        await asyncio.sleep(SILENT)
        before, left = left, transport.get_write_buffer_size()
        if left == before and not waited_for:
            transport.abort()
            return


async def _end(transport: asyncio.Transport) -> None:
    try:
        await cut_when_silent(transport)
    finally:  # the end of the loop, too, ends it
        if transport.get_write_buffer_size():
            transport.abort()
