"""HTTP connections per event loop, so that one client object serves several loops, threads and forks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

import aiohttp

from orchard.core.connections import that_end

CONNECT_TIMEOUT = 5.0  # seconds until an address that does not answer counts as unreachable
DIRECT_CONNECT = 1.5  # the same of a sandbox's own address: it is near, and that of a Pod that has gone is silent
_KEEPALIVE = 25.0  # seconds an idle connection is kept; longer than the owner's renewal, so that its own stays warm
_READ_BUFFER = 1 << 18

_foreign: list[object] = []
"""What a fork inherited. Its sockets and epoll belong to the parent: touching them, even to close, would reach it."""


class _LoopSessions:
    """Sessions of one loop, and the generator whose end, at the latest the loop's own shutdown, closes them."""

    def __init__(self) -> None:
        self.by_base: dict[tuple[str, bool], aiohttp.ClientSession] = {}
        self.guard = self._until_shutdown(self.by_base)

    @staticmethod
    async def _until_shutdown(sessions: dict[tuple[str, bool], aiohttp.ClientSession]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            for session in list(sessions.values()):
                await session.close()
            sessions.clear()


class Sessions:
    """Keeps one ``aiohttp.ClientSession`` per loop and address. Never caps the number of connections."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loops: dict[asyncio.AbstractEventLoop, _LoopSessions] = {}

    async def get(self, base: str, *, apart: bool = False) -> aiohttp.ClientSession:
        """Return the session for ``base`` (``unix:/path`` or a URL) in the running loop.

        One with ``apart`` has connections of its own: what goes over it does not wait for those of a thousand commands.
        """
        loop = asyncio.get_running_loop()
        self._check_fork()
        here = self._loops.get(loop)
        if here is None:
            for old in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(old, None)
            here = self._loops[loop] = _LoopSessions()
            await anext(here.guard)
        session = here.by_base.get((base, apart))
        if session is None or session.closed:
            session = here.by_base[base, apart] = _open(base)
        return session

    async def drop(self, base: str) -> None:
        """Close the connections to ``base`` in the running loop."""
        self._check_fork()
        here = self._loops.get(asyncio.get_running_loop())
        for apart in (False, True):
            session = here.by_base.pop((base, apart), None) if here else None
            if session is not None:
                await session.close()

    async def close(self) -> None:
        """Close all connections of the running loop; a later ``get`` opens anew."""
        self._check_fork()
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.guard.aclose()

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            _foreign.append(self._loops)
            self._loops, self._pid = {}, os.getpid()


def _open(base: str) -> aiohttp.ClientSession:
    connector: aiohttp.BaseConnector
    if base.startswith("unix:"):
        connector = aiohttp.UnixConnector(base.removeprefix("unix:"), limit=0, keepalive_timeout=_KEEPALIVE)
    else:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE)
    return aiohttp.ClientSession(
        connector=that_end(connector),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=_READ_BUFFER,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )
