"""One exchange relayed between an ASGI client and a connection: bodies stream both ways, memory stays flat.

Before the answer has begun, errors are raised typed; a break in the middle of a body raises too, and whoever serves the
client then breaks its connection, so that a cut answer is never taken for a whole one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from orchard.core.errors import Unavailable
from orchard.core.tasks import cancel
from orchard.service.keys import Caller
from orchard.service.server import arm_trailers, has_left
from orchard.service.upstream import Answer, Connection, Headers

_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
    b"transfer-encoding", b"upgrade", b"expect",
})  # fmt: skip
_ENDLESS = (b"application/vnd.orchard.frames", b"application/x-ndjson", b"text/event-stream")
"""Bodies that may go on for ever; a service that stops ends them at once."""


@dataclass(frozen=True)
class Request:
    """One request below ``/v1/sandboxes/{id}/`` after authentication."""

    scope: Any
    receive: Any
    send: Any
    caller: Caller
    sandbox_id: str
    rest: bytes
    """The raw path after the id, percent-encoding untouched: ``/files``."""
    request_id: str


class Disconnected(Exception):
    """The client has gone; nobody waits for an answer."""


class Relay:
    """Relays exchanges, and ends the endless ones when the service stops."""

    def __init__(self) -> None:
        self._endless: set[Connection] = set()
        self._closing = False

    async def converse(
        self, request: Request, connection: Connection, target: bytes, headers: Headers,
        check: Callable[[Answer], Headers], within: float | None = None,
    ) -> None:  # fmt: skip
        """Send the request over ``connection`` and relay the answer.

        Args:
            request: the client's side.
            connection: used for this exchange alone; ``reusable`` afterwards says whether it can serve another.
            target: path and query for the request line.
            headers: all of them, framing included.
            check: looks at the head of the answer, and returns the headers for the client or raises.
            within: seconds until the answer has to begin; None: as long as it takes.

        Raises:
            Unavailable: no answer, or a cut one.
            Disconnected: the client has gone.
        """
        await send_head(connection, request.scope["method"], target, headers)
        pump = asyncio.create_task(_pump(request, connection))
        try:
            async with promptly(within):
                answer = await connection.read_head()
            await self._answer(request, connection, answer, check(answer))
        except Unavailable as error:
            await cancel(pump)  # how it ended was told by the exchange itself
            if _left(pump) or has_left(request.scope):
                raise Disconnected from error
            raise
        finally:
            await cancel(pump)

    async def _answer(self, request: Request, connection: Connection, answer: Answer, headers: Headers) -> None:
        send, endless = request.send, _is_endless(answer)
        trailing = answer.get(b"trailer") is not None and request.scope["method"] != "HEAD"
        if not 200 <= answer.status < 600:
            raise Unavailable(f"the answer's status {answer.status} is none of HTTP")
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if endless:
            self._track(connection)
        try:
            async with contextlib.aclosing(connection.body()) as body:
                async for data in body:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._endless.discard(connection)
        if trailing and answer.trailers:
            arm_trailers(request.scope, answer.trailers)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _track(self, connection: Connection) -> None:
        self._endless.add(connection)
        if self._closing:
            connection.end()

    def close(self) -> None:
        """End the streams that would go on for ever: each ends without an exit frame, so clients come back for it."""
        self._closing = True
        for connection in list(self._endless):
            connection.end()


@contextlib.asynccontextmanager
async def promptly(seconds: float | None) -> AsyncGenerator[None]:
    """Bound what is done in the block; None: it takes as long as it takes.

    Raises:
        Unavailable: it has taken longer.
    """
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise Unavailable(f"the sandbox does not answer in {seconds:g} s") from error


async def send_head(connection: Connection, method: str, target: bytes, headers: Headers) -> None:
    """Send the head of a request.

    Raises:
        Unavailable: the connection broke.
    """
    try:
        await connection.send_head(method.encode("ascii"), target, headers)
    except OSError as error:
        raise Unavailable("the connection to the sandbox broke") from error


async def send_in(request: Request, connection: Connection, data: bytes) -> None:
    """Send bytes of the client's, waiting while the sandbox is slow; once the client has gone, while it takes any.

    A client is not heard meanwhile, hence it is looked after.

    Raises:
        Disconnected: it has gone, and the sandbox takes no more.
        OSError: the connection broke.
    """
    try:
        await connection.send(data, lambda: not has_left(request.scope))
    except OSError as error:
        if has_left(request.scope):
            raise Disconnected from error
        raise


def forwarded(headers: Headers, without: frozenset[bytes]) -> Headers:
    """Return request headers for the next hop: those of this hop and of ``without`` left out, the framing restated."""
    dropped = _HOP | without | _named_by_connection(headers)
    kept = [(name, value) for name, value in headers if name not in dropped]
    if _is_chunked(headers):
        kept = [pair for pair in kept if pair[0] != b"content-length"]
        kept.append((b"Transfer-Encoding", b"chunked"))
    return kept


def returned(answer: Answer, without: frozenset[bytes] = frozenset()) -> Headers:
    """Return an answer's headers for the client: those of the hop and of ``without`` left out."""
    pairs = [(name.lower(), value) for name, value in answer.headers]
    dropped = _HOP | without | _named_by_connection(pairs)
    return [(name, value) for name, value in pairs if name not in dropped]


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Return the names that a ``Connection`` header declares to be of this hop only."""
    lists = [value for name, value in headers if name == b"connection"]
    return frozenset(part.strip().lower() for value in lists for part in value.split(b","))


def _is_chunked(headers: Headers) -> bool:
    return any(name == b"transfer-encoding" and b"chunked" in value.lower() for name, value in headers)


def _is_endless(answer: Answer) -> bool:
    return (answer.get(b"content-type") or b"").partition(b";")[0].strip() in _ENDLESS


async def _pump(request: Request, connection: Connection) -> None:
    """Send the request's body, then wait for the client to leave: that ends the upstream exchange.

    Raises:
        Disconnected: the client has left.
        OSError: the sandbox does not take the body (any more); its answer says why.
    """
    chunked = _is_chunked(request.scope["headers"])
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            connection.abort()
            raise Disconnected
        data, more = message.get("body", b""), message.get("more_body", False)
        if data and not connection.refused:
            await send_in(request, connection, b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        if not more:
            break
    if not connection.refused:
        if chunked:
            await send_in(request, connection, b"0\r\n\r\n")
        connection.request_done = True
    while (await request.receive())["type"] != "http.disconnect":
        pass
    connection.abort()
    raise Disconnected


def _left(pump: asyncio.Task[None]) -> bool:
    return not pump.cancelled() and isinstance(pump.exception(), Disconnected)
