"""HTTP client of the wire of sandboxd over one ``Endpoint``: identity, retries, streams and tunnels.

An answer without our sandbox's id is a stranger's (a recycled address, a proxy in between) and counts as no answer.
After each failed try the ``Locate`` callback is asked where the sandbox is now: it raises ``SandboxGone`` once that is
known, so that nobody waits for the dead.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import quote

import aiohttp
from yarl import URL

from orchard.core.errors import InvalidArgument, OrchardError, RateLimited, Unauthorized, Unavailable
from orchard.core.retry import Patience
from orchard.sandbox.answers import BROKEN, NOT_SENT, check_identity, problem_of, translated
from orchard.sandbox.sessions import DIRECT_CONNECT, Sessions
from orchard.sandbox.tunnel import Tunnel, open_tunnel
from orchard.sandbox.types import Endpoint

Locate = Callable[[], Awaitable[Endpoint]]
"""Returns where the sandbox is now; raises ``SandboxGone`` once it has ended."""
Body = bytes | Callable[[], AsyncIterator[bytes] | aiohttp.Payload]
"""The body of a request; a callable makes it anew for each try."""
T = TypeVar("T")

RETRY_WINDOW = 60.0  # seconds of unbroken failure until a call gives up; longer than a service's restart
PIECE = 1 << 18  # bytes of a large body handed to the network at once
SILENCE = 35.0  # seconds without a byte until an answer counts as broken; keep-alives of streams come every 10


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the wire."""

    method: str
    path: str
    """Below the endpoint's prefix, percent-encoded: ``/processes``."""
    query: str = ""
    """Percent-encoded, without ``?``; see ``query``."""
    json: Any = None
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    safe: bool = True
    """A second arrival does no harm. An unsafe call is only tried again if it was not sent."""
    applied: type[OrchardError] | None = None
    """The error by which a further try shows that a broken one took effect; it then counts as success."""
    window: float = RETRY_WINDOW
    apart: bool = False
    """Over a connection that no other kind of call uses."""
    silence: float | None = SILENCE
    """Seconds without a byte of the answer until it counts as broken; None, of work without a bound: no limit."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            Unavailable: it is none, so something in between has spoilt it.
        """
        try:
            facts: Any = json.loads(self.body) if self.body else {}
        except ValueError as error:
            raise Unavailable(f"the answer is not JSON: {self.body[:100]!r}", reason=BROKEN) from error
        if not isinstance(facts, dict):
            raise Unavailable(f"the answer is not a JSON object: {self.body[:100]!r}", reason=BROKEN)
        return cast("dict[str, Any]", facts)


def encode_path(path: str | bytes) -> bytes:
    """Return the raw bytes of a sandbox path; a ``str`` may carry surrogates of bytes that are not UTF-8."""
    return path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")


def query(**values: str | bytes | float | bool | list[str | bytes] | None) -> str:
    """Return a percent-encoded query; None is left out, True is 1, a list repeats its name."""
    parts: list[str] = []
    for name, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            if one is None:
                continue
            raw = encode_path(one) if isinstance(one, str | bytes) else str(int(one) if one is True else one or 0)
            parts.append(f"{name}={quote(raw, safe='/')}")
    return "&".join(parts)


class Transport:
    """Speaks to one sandbox.

    Args:
        endpoint: where it is.
        sessions: connections to share; its owner closes them. None: its own, closed by ``close``.
        locate: asked after each failed try; None: the endpoint is all there is.
    """

    def __init__(self, endpoint: Endpoint, *, sessions: Sessions | None = None, locate: Locate | None = None) -> None:
        self._locate = locate
        self._sessions = sessions or Sessions()
        self._owns_sessions = sessions is None
        self._set(endpoint)

    def _set(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._base = endpoint.base.rstrip("/").removesuffix(endpoint.prefix)
        origin = "http://sandboxd" if self._base.startswith("unix:") else self._base
        self._root = origin + endpoint.prefix
        self._headers = dict(endpoint.headers)

    async def request(self, call: Call) -> Reply:
        """Send and return the whole answer, trying again as ``call.safe`` allows.

        Raises:
            OrchardError: what the sandbox answered, or ``Unavailable`` (``reason`` says whether it was sent), or
                ``SandboxGone``.
        """
        broken = False

        async def once() -> Reply:
            nonlocal broken
            try:
                async with self.open(call) as response:
                    with translated():
                        body = await response.read()
                    return Reply(response.status, response.headers, body)
            except OrchardError as error:
                if broken and call.applied is not None and isinstance(error, call.applied):
                    return Reply(200, {}, b"")
                broken = broken or (isinstance(error, Unavailable) and error.reason != NOT_SENT)
                raise

        return await self.retrying(call, once)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send once; yield the answer after its headers, its body unread. No second try.

        Raises:
            OrchardError: as ``request``.
        """
        session = await self._sessions.get(self._base, apart=call.apart)
        direct = self.endpoint.tunnel == "upgrade"
        connect = DIRECT_CONNECT if direct else session.timeout.sock_connect
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=call.silence)
        with translated():
            response = await session.request(
                call.method, self._url(call), data=_payload(call), headers=self._merged(call), timeout=timeout,
                allow_redirects=False,
            )  # fmt: skip
        try:
            await self._check(call, response)
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    @asynccontextmanager
    async def stream(self, call: Call, patience: Patience | None = None) -> AsyncGenerator[aiohttp.ClientResponse]:
        """As ``open``, tried again until the headers of an answer are there. Its body may still break off.

        Raises:
            OrchardError: as ``request``.
        """
        async with AsyncExitStack() as stack:
            yield await self.retrying(call, lambda: stack.enter_async_context(self.open(call)), patience)

    async def retrying(self, call: Call, once: Callable[[], Awaitable[T]], patience: Patience | None = None) -> T:
        """Repeat ``once`` until it answers, the sandbox is gone, or the window has passed without one answer.

        Raises:
            OrchardError: as ``request``.
        """
        patience = patience or Patience(call.window)
        while True:
            try:
                return await once()
            except Unauthorized as lapsed:
                if not self.endpoint.lapses:
                    raise
                await self.relocate()
                await patience.pause(lapsed)
            except RateLimited as limited:
                await patience.pause(limited, limited.retry_after)
            except Unavailable as lost:
                await self.relocate()
                if not call.safe and lost.reason != NOT_SENT:
                    raise
                await patience.pause(lost)

    async def relocate(self) -> None:
        """Ask where the sandbox is now.

        Raises:
            SandboxGone: it has ended.
            NotFound: it is not known (any more).
        """
        if self._locate is None:
            return
        with suppress(Unavailable):  # who would know cannot be reached either: the caller's patience decides
            self._set(await self._locate())

    async def tunnel(self, call: Call) -> Tunnel:
        """Open a two-way stream of raw bytes at ``call.path``. Tried again if it was not sent.

        Raises:
            NotFound: ``reason`` ``connection_refused``: nothing listens on that port.
        """

        async def once() -> Tunnel:
            with translated():
                return await open_tunnel(
                    self.endpoint, self._base, self._url(call), await self._sessions.get(self._base)
                )

        return await self.retrying(call, once)

    async def close(self) -> None:
        """Close the connections of the running loop."""
        if self._owns_sessions:
            await self._sessions.close()
        elif self._base.startswith("unix:"):
            await self._sessions.drop(self._base)

    def _url(self, call: Call) -> URL:
        return URL(f"{self._root}{call.path}?{call.query}" if call.query else self._root + call.path, encoded=True)

    def _merged(self, call: Call) -> dict[str, str]:
        if call.json is not None:
            return {**self._headers, "Content-Type": "application/json", **call.headers}
        return {**self._headers, **call.headers} if call.headers else self._headers

    async def _check(self, call: Call, response: aiohttp.ClientResponse) -> None:
        check_identity(response.headers, self.endpoint.sandbox_id, response.status)
        if response.status < 400:
            return
        with translated():
            body = await response.read()
        error = problem_of(response.status, response.headers, body)
        if isinstance(error, InvalidArgument) and error.field == "body" and call.body is not None:
            raise Unavailable(f"the request was cut on its way: {error.message}", reason=BROKEN) from error
        raise error


def _payload(call: Call) -> Any:
    body = json.dumps(call.json, separators=(",", ":")).encode() if call.json is not None else call.body
    if callable(body):
        return body()
    return _sliced(body) if body is not None and len(body) > PIECE else body


async def _sliced(body: bytes) -> AsyncIterator[bytes]:
    """Yield a large body in pieces, so that the event loop goes on meanwhile."""
    view = memoryview(body)
    for at in range(0, len(body), PIECE):
        yield bytes(view[at : at + PIECE])
