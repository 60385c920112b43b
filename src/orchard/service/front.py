"""The door: request ids, keys, rates, which room serves, errors as problem+json, one log line a request. Plain ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from orchard.core.errors import InternalError, InvalidArgument, NotFound, OrchardError, Unauthorized
from orchard.core.ids import check_key, new_id
from orchard.service.datapath import ROOMS, DataPath
from orchard.service.keys import NO_AUTH, Caller, KeyRing
from orchard.service.limits import Rates
from orchard.service.portproxy import PortProxy
from orchard.service.problems import behind_the_door, send_problem
from orchard.service.relay import Disconnected, Request
from orchard.service.tunnels import Tunnels

log = logging.getLogger("orchard.service")

OPEN_PATHS = frozenset({"/health", "/v1/health", "/openapi.json"})
"""Answered without a key."""
_BASE = b"/v1/sandboxes/"
_MOST_BODY = 4 << 20  # bytes of a request to the control plane; the data path has no bound
_ID = re.compile(rb"[a-z0-9-]{1,63}")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ROOMS_SHOWN = ROOMS | {"proxy", "sandboxes", "images", "capabilities", "metrics", "stats", "health", "creates"}


@dataclass
class _Turn:
    """What is learnt of one request while it is served."""

    scope: Any
    receive: Any
    inner_send: Any
    request_id: str
    sandbox_id: bytes = b""
    room: str = "other"
    key_name: str = "-"
    admitted: bool = False
    status: int = 0
    complete: bool = False
    started_at: float = field(default_factory=time.perf_counter)

    async def send(self, message: Any) -> None:
        """Pass a message on, with the headers of every answer."""
        kind = message["type"]
        if kind.endswith(".start"):
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"orchard-request-id", self.request_id.encode())]
            if self.sandbox_id:
                headers.append((b"orchard-sandbox", self.sandbox_id))
            message = {**message, "headers": headers}
        elif kind == "websocket.accept":
            self.status = 101
        elif kind.endswith(".body") and not message.get("more_body"):
            self.complete = True
        await self.inner_send(message)


class Front:
    """The ASGI application: the control plane, and the data path in front of it.

    Args:
        control: the control plane's ASGI application.
        keys: None: no keys; every caller is the tenant ``default``, and only loopback names are served.
        rooms: what serves requests below ``/v1/sandboxes/{id}/``.
        lifespan: entered when the server starts, left when it has stopped.
    """

    def __init__(
        self, control: Any, keys: KeyRing | None, rooms: tuple[DataPath, Tunnels, PortProxy],
        lifespan: Callable[[], contextlib.AbstractAsyncContextManager[None]],
    ) -> None:  # fmt: skip
        self._control, self._keys, self._rates = control, keys, Rates()
        self._datapath, self._tunnels, self._proxy = rooms
        self._lifespan = lifespan
        self.on_answer: Callable[[str, str, int, float], None] = lambda *_: None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection's request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        turn = _Turn(scope, receive, send, _request_id(scope))
        try:
            await self._serve(turn)
        except Disconnected:
            turn.status = turn.status or 499
            if scope["type"] == "http":  # it may have gone without uvicorn's notice
                _break(scope)
                await _await_end(receive, 1)
        except OrchardError as error:
            await self._failed(turn, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 the seam to the network: whatever else is a fault of ours
            if turn.complete:
                self._log_fault(turn, error)
            else:
                await self._failed(turn, error)
        finally:
            self._note(turn)

    async def _serve(self, turn: _Turn) -> None:
        scope = turn.scope
        target = _below_sandbox(scope["raw_path"])
        if target is not None:
            turn.sandbox_id = target[0] if _ID.fullmatch(target[0]) else b""
        caller = self._admit(scope)
        turn.key_name, turn.admitted = caller.key_name, True
        if target is None or (scope["type"] == "http" and not (target[1] in ROOMS or target[1] == "proxy")):
            await self._serve_control(turn, caller)
            return
        sandbox_id, turn.room, rest = target
        request = Request(scope, turn.receive, turn.send, caller, sandbox_id.decode("latin-1"), rest, turn.request_id)
        await self._room(turn.room, scope["type"])(request)

    async def _serve_control(self, turn: _Turn, caller: Caller) -> None:
        scope = turn.scope
        if scope["type"] != "http":
            raise NotFound("no WebSocket is served here")
        first = scope["path"].removeprefix("/v1").split("/")[1:2]
        turn.room = first[0] if first and first[0] in _ROOMS_SHOWN else "other"
        scope.setdefault("state", {}).update(caller=caller, request_id=turn.request_id)
        await self._control(scope, _bounded(turn.receive), turn.send)

    def _room(self, room: str, kind: str) -> Callable[[Request], Awaitable[None]]:
        if room == "proxy":
            return self._proxy.handle
        if kind == "http":
            return _checked(self._datapath.handle)
        if room in ("ports", "reverse"):
            return _checked(self._tunnels.handle)
        raise NotFound("no WebSocket is served here")

    def _admit(self, scope: Any) -> Caller:
        """Return who asks.

        Raises:
            Unauthorized: no good key.
            RateLimited: the key's rate is used up.
        """
        if scope["path"] in OPEN_PATHS:
            return NO_AUTH
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if self._keys is None:
            _check_loopback(headers)
            return NO_AUTH
        caller = self._keys.caller(_key(headers))
        self._rates.take(caller)
        return caller

    async def _failed(self, turn: _Turn, error: Exception) -> None:
        """Answer with the error or, where an answer has begun, break the connection."""
        if not isinstance(error, OrchardError):
            self._log_fault(turn, error)
            error = InternalError(
                "a fault of the service", hint=f"its log says more under {turn.request_id}", request_id=turn.request_id
            )
        if turn.admitted:
            error = behind_the_door(error, turn.request_id)
        if not turn.status:
            await send_problem(turn.scope, turn.send, error, turn.request_id)
            if turn.scope["type"] == "websocket":
                await _await_end(turn.receive, 2)
        elif turn.scope["type"] == "http":
            _break(turn.scope)
            await _await_end(turn.receive, 1)
        else:
            await turn.send({"type": "websocket.close", "code": 1011})

    def _log_fault(self, turn: _Turn, error: Exception) -> None:
        log.error("fault in request %s", turn.request_id, exc_info=error)

    def _note(self, turn: _Turn) -> None:
        seconds = time.perf_counter() - turn.started_at
        method = turn.scope.get("method", "WEBSOCKET")
        self.on_answer(turn.room, method, turn.status, seconds)
        probe = turn.scope["path"] in OPEN_PATHS and turn.status < 400
        level = logging.DEBUG if probe else logging.INFO  # kubelets and load balancers ask every few seconds
        if log.isEnabledFor(level):
            log.log(
                level, "%s %s %d %.1f ms request=%s key=%s", method, _logged_path(turn), turn.status, seconds * 1e3,
                turn.request_id, turn.key_name,
            )  # fmt: skip

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        async with self._lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def _bounded(receive: Any) -> Any:
    """Return ``receive`` with an end to the body it accepts."""
    size = 0

    async def bounded() -> Any:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > _MOST_BODY:
            raise InvalidArgument(f"the body is larger than {_MOST_BODY} bytes", field="body")
        return message

    return bounded


async def _await_end(receive: Any, times: int) -> None:
    """Wait until a connection has ended that was refused or broken; uvicorn logs an earlier return as a fault."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            for _ in range(times):
                while not (await receive())["type"].endswith(".disconnect"):
                    pass


def _below_sandbox(raw_path: bytes) -> tuple[bytes, str, bytes] | None:
    """Return id, room and the raw rest (``/files…``) of a path below one sandbox."""
    if not raw_path.startswith(_BASE):
        return None
    sandbox_id, slash, rest = raw_path[len(_BASE) :].partition(b"/")
    if not slash or not rest:
        return None
    return sandbox_id, rest.partition(b"/")[0].decode("latin-1"), slash + rest


def _checked(handle: Callable[[Request], Awaitable[None]]) -> Callable[[Request], Awaitable[None]]:
    """Refuse dot segments first: no path of the wire has one, and none may lead out of its room."""

    async def checked(request: Request) -> None:
        rest = request.rest.lower().replace(b"%2e", b".")
        if any(part in (b".", b"..") for part in rest.replace(b"%2f", b"/").split(b"/")):
            raise InvalidArgument("the path holds a dot segment", field="path")
        await handle(request)

    return checked


def _request_id(scope: Any) -> str:
    for name, value in scope["headers"]:
        if name == b"orchard-request-id":
            try:
                return check_key(value.decode("latin-1"), "Orchard-Request-Id")
            except InvalidArgument:
                break
    return new_id("req")


def _key(headers: list[tuple[bytes, bytes]]) -> str | None:
    """Return the API key: ``X-Orchard-Key``, else ``Authorization: Bearer``. Never from a URL."""
    bearer = None
    for name, value in headers:
        if name == b"x-orchard-key":
            return value.decode("latin-1").strip()
        if name == b"authorization":
            scheme, _, rest = value.decode("latin-1").partition(" ")
            bearer = rest.strip() if scheme.lower() == "bearer" else None
    return bearer


def _check_loopback(headers: list[tuple[bytes, bytes]]) -> None:
    """Without keys only this machine's own names are served, so that no web page can reach in by a name of its own.

    Raises:
        Unauthorized: another Host or Origin.
    """
    for name, value in headers:
        if name not in (b"host", b"origin"):
            continue
        host = value.decode("latin-1").partition("://")[2] if name == b"origin" else value.decode("latin-1")
        host = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if host.lower() not in _LOOPBACK:
            raise Unauthorized(f"a service without keys answers on loopback names only, not {host!r}")


def _break(scope: Any) -> None:
    transport = scope.get("state", {}).get("transport")
    if transport is not None:
        transport.abort()


def _logged_path(turn: _Turn) -> str:
    """The path without what may be private: no query, and nothing below a proxied port."""
    path = turn.scope["raw_path"].decode("latin-1")
    return "/".join(path.split("/")[:6]) if turn.room == "proxy" else path[:200]
