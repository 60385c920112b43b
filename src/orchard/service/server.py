"""uvicorn, with what a relay needs beyond it: trailers, and an early word before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orchard.core.errors import Unavailable

_GRACE = 8.0  # seconds that answers under way have to end once the service stops
_MOST_HEAD = 1 << 18  # bytes of a request's head, not counting its first piece
_KEEPALIVE = (  # options of a connection; one that rests and whose peer has vanished ends two minutes later
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)  # fmt: skip
_LAST_CHUNK = b"0\r\n\r\n"


class _Transport:
    """A transport whose next last chunk carries trailers, if some were armed. All else is the inner one's."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self.trailers: list[tuple[bytes, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        if self.trailers and data == _LAST_CHUNK:
            fields = b"".join(b"%b: %b\r\n" % pair for pair in self.trailers)
            data, self.trailers = b"0\r\n" + fields + b"\r\n", []
        self._inner.write(data)


class _Protocol(HttpToolsProtocol):
    """Shows its transport to the application as ``scope["state"]["transport"]``; uvicorn itself sends no trailers."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
        self._in_head, self._head_size = False, 0

    def data_received(self, data: bytes) -> None:
        """Parse what came; a head without an end is refused, since uvicorn itself would keep it all."""
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > _MOST_HEAD:
                self.send_400_response("The head of the request is too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self._in_head, self._head_size = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that the head has ended."""
        self._in_head = False
        super().on_headers_complete()

    def connection_made(self, transport: Any) -> None:
        wrapped = _Transport(transport)
        self.app_state["transport"] = wrapped
        super().connection_made(wrapped)  # pyright: ignore[reportArgumentType]


def arm_trailers(scope: Any, trailers: list[tuple[bytes, bytes]]) -> None:
    """Send ``trailers`` after the body; the last body message must be empty. Without chunks nothing is sent."""
    transport = scope.get("state", {}).get("transport")
    if transport is not None:
        transport.trailers = list(trailers)


def has_left(scope: Any) -> bool:
    """Return whether the client has closed its connection, even if what it sent before is still to be read."""
    transport = scope.get("state", {}).get("transport")
    if transport is None:
        return False
    if transport.is_closing():
        return True
    ends = select.poll()
    ends.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(ends.poll(0))


def _keep_alive(listener: int, family: int) -> None:
    """Let the kernel find out which clients have vanished; the connections have it from their listener."""
    with socket.fromfd(listener, family, socket.SOCK_STREAM) as same:
        for option in _KEEPALIVE:
            same.setsockopt(*option)


@contextlib.contextmanager
def _refusals() -> Generator[list[OSError]]:
    """Keep the errors that uvicorn logs out of its log, and yield the list of them."""
    found = list[OSError]()

    def keep(record: logging.LogRecord) -> bool:
        if isinstance(record.msg, OSError):
            found.append(record.msg)
            return False
        return True

    log = logging.getLogger("uvicorn.error")
    log.addFilter(keep)
    try:
        yield found
    finally:
        log.removeFilter(keep)


class Server(uvicorn.Server):
    """A uvicorn server that says when it begins to stop.

    Args:
        config: see ``configure``.
        stopping: called once, before open connections are asked to end.
        listening: called with the port once requests are served.
    """

    def __init__(
        self, config: uvicorn.Config, stopping: Callable[[], None], listening: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(config)
        self._stopping, self._listening = stopping, listening

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to whoever runs the server; ``stop`` is what to call."""
        yield

    def stop(self) -> None:
        """Begin to stop; called again, stop without waiting for answers under way."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        """Begin to serve.

        Raises:
            Unavailable: the address cannot be had; it is named, and why.
        """
        with _refusals() as refused:
            try:
                await super().startup(sockets)
            except SystemExit as error:  # uvicorn's word for it, after the reason went to its log
                raise self._cannot_listen(refused) from error
        if not self.started:
            return
        for listener in (each for server in self.servers for each in server.sockets):
            _keep_alive(listener.fileno(), listener.family)
        if self._listening is not None:
            self._listening(self.servers[0].sockets[0].getsockname()[1])

    def _cannot_listen(self, refused: list[OSError]) -> Unavailable:
        error = refused[0] if refused else OSError()
        number = error.errno or 0  # below 0: of the resolver of names
        why = os.strerror(number) if number > 0 else error.strerror or "it cannot be had"
        hint = "choose another port" if error.errno == errno.EADDRINUSE else None
        return Unavailable(f"cannot listen on port {self.config.port} of {self.config.host}: {why}", hint=hint)

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop accepting, end what would go on for ever, let the rest finish."""
        for server in self.servers:
            server.close()
        self._stopping()
        await super().shutdown(sockets)


def configure(
    app: Any, *, host: str, port: int, certificate: Path | None = None, key: Path | None = None
) -> uvicorn.Config:
    """Return the configuration of a server for ``app``; with a certificate and its key it speaks TLS."""
    return uvicorn.Config(
        app, host=host, port=port, log_level="warning", log_config=None, access_log=False,
        ssl_certfile=certificate, ssl_keyfile=key, http=_Protocol,
        ws="websockets-sansio", ws_per_message_deflate=False, ws_max_size=1 << 24, backlog=4096, loop="uvloop",
        ws_ping_timeout=None,  # a tunnel whose reader stands still answers no ping, and is well
        server_header=False, date_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=int(_GRACE),
        lifespan="on",
    )  # fmt: skip
