"""The gateway: a model endpoint that any harness can point at, and that records every call before it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from aiohttp import web

from orchard.core.errors import Conflict, InvalidArgument, NotFound, OrchardError, StoreFailed, Unauthorized
from orchard.core.tasks import finish
from orchard.gateway.asking import COUNT, PREFIX, bare, bearers, is_for_a_model, is_retry
from orchard.gateway.counting import count_tokens
from orchard.gateway.delivery import Silence, error_response, send_stream, send_whole
from orchard.gateway.dialects import DIALECTS, MESSAGES, dialect_of
from orchard.gateway.dialects.base import Dialect
from orchard.gateway.dialects.models import model, models
from orchard.gateway.engine import Engine
from orchard.gateway.errors import BodyTooLarge, BudgetExceeded
from orchard.gateway.session import Access, Budget, Session, body_digest, new_session_id
from orchard.gateway.sockets import SocketFolder
from orchard.trajectories import SessionRecord, Store

log = logging.getLogger(__name__)
_IDLE_SECONDS = 3600.0
"""A connection is kept for as long as a command of the harness may take between two calls."""


@dataclass(frozen=True)
class GatewayConfig:
    """Bounds of the gateway."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    hold_seconds: float = 240.0
    """How long a call waits for an engine that is away; clients give up at 300 s and later."""
    keep_alive_seconds: float = 10.0
    header_grace_seconds: float = 1.0
    """How long a stream's headers wait for a first sign of the engine, so that a refusal still has its status."""
    body_bytes: int = 64 << 20
    training: bool = False
    """Whether calls are to be trained on, where a session does not say it itself; see ``Session.training``."""


class Gateway:
    """Serves sessions. ``async with Gateway(store, engines) as gateway``.

    Args:
        store: where calls are recorded.
        engines: what samples, by name. The first one is the default. They are closed with the gateway.
        config: bounds.
    """

    def __init__(self, store: Store, engines: Mapping[str, Engine], config: GatewayConfig | None = None) -> None:
        self._store, self._engines = store, dict(engines)
        self._config = config or GatewayConfig()
        self.at_first_use: Callable[[str, str], Awaitable[Session]] | None = None
        """Opens the session of a name in a URL, or else of a key, that nobody knows; both are given, either may be "".
        None: they are refused."""
        self._opening = asyncio.Lock()
        self._sessions: dict[str, Session] = {}
        """By id, and by name where one has a name."""
        self._keys: dict[str, Session] = {}
        self._words: set[str] = set()
        """Keys that opened a session at their first use: whoever takes the same word is no stranger elsewhere."""
        self._by_socket: dict[str, Session] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._transports: dict[str, WeakSet[asyncio.Transport]] = {}
        self._sockets: SocketFolder | None = None
        self._port = 0
        app = web.Application(client_max_size=self._config.body_bytes)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, keepalive_timeout=_IDLE_SECONDS
        )

    @property
    def url(self) -> str:
        """Root URL; a session's is ``url/s/SESSION``."""
        return f"http://{self._config.host}:{self._port}"

    async def __aenter__(self) -> Gateway:
        try:
            await self._runner.setup()
            await self._listen()
            self._sockets = SocketFolder()
        except BaseException:
            await finish(self._runner.cleanup())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finish(self._stop())

    async def _listen(self) -> None:
        site = web.TCPSite(self._runner, self._config.host, self._config.port, backlog=1024)
        try:
            await finish(site.start())  # a start that is cut may leave a socket that nobody holds
        except OSError as error:
            raise Conflict(
                f"cannot listen on {self._config.host}:{self._config.port}: {error.strerror}",
                hint="take another port, or 0 for a free one",
            ) from error
        self._port = int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        for session in set(self._sessions.values()):
            await self.close_session(session)
        await self._runner.cleanup()
        if self._sockets is not None:
            self._sockets.close()
        for engine in self._engines.values():
            await engine.close()

    async def open_session(
        self,
        labels: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        engine: str | Engine | None = None,
        model: str = "",
        *,
        access: Access | None = None,
        aliases: Sequence[str] = (),
        training: bool | None = None,
    ) -> Session:
        """Open a session for one try of one rollout.

        Args:
            labels: kept with the record (run, rollout, task, attempt, try …).
            budget: bounds; none by default.
            engine: a name of those given to the gateway, or an engine (which its owner closes). Default: the first.
            model: asked of the engine, whatever the harness asks for; "" leaves the harness's.
            access: a name and a key of the caller's choice; a secret URL and a random key by default.
            aliases: further names that ``/models`` lists, for harnesses that look for theirs there.
            training: see ``Session.training``; None: as the gateway's configuration says.

        Raises:
            Conflict: an open session has this name or key.
            InvalidArgument: no name looks like that.
            NotFound: no engine of this name.
            StoreFailed: the session could not be recorded.
        """
        sockets = self._sockets
        if sockets is None:
            raise InvalidArgument("the gateway is not running: enter it with 'async with' first")
        access = access or Access()
        self._check_access(access)
        session_id, path, name = new_session_id(), sockets.new(), access.name
        session = Session(
            id=session_id, url=f"{self.url}/s/{name or session_id}", target=f"unix:{path}", engine=self._engine(engine),
            model=model, aliases=tuple(aliases), store=self._store, labels=dict(labels or {}),
            budget=budget or Budget(), hold_seconds=self._config.hold_seconds, on_close=self.close_session,
            training=self._config.training if training is None else training,
        )  # fmt: skip
        session.api_key = access.api_key or session.api_key
        await self._store.append(
            SessionRecord(
                session=session_id, at=datetime.now(UTC), labels=dict(session.labels),
                budget=session.budget.facts(), engine=session.engine.name, model=model, training=session.training,
            )
        )  # fmt: skip
        await self._serve(session, name, str(path))
        log.debug("session %s opened: engine %s, labels %s", session_id, session.engine.name, dict(session.labels))
        return session

    async def _serve(self, session: Session, name: str, path: str) -> None:
        """Know a session from now on, and listen on its socket."""
        assert self._runner.server is not None
        server = await asyncio.get_running_loop().create_unix_server(self._runner.server, path, start_serving=False)
        self._servers[session.id] = server
        self._sessions[session.id] = self._keys[session.api_key] = self._by_socket[path] = session
        self._sessions |= {name: session} if name else {}
        self._transports[session.id] = WeakSet()
        try:
            await server.start_serving()
        except BaseException:
            await self.close_session(session)
            raise

    def _check_access(self, access: Access) -> None:
        name = access.name
        if name and not PREFIX.fullmatch(f"/s/{name}"):
            raise InvalidArgument(f"{name!r} is no name of a session: letters, digits, -, _ and . only", field="name")
        if name in self._sessions or access.api_key in self._keys:
            raise Conflict(f"a session {name or 'of this key'} is open already", hint="close it, or take another name")

    def _engine(self, engine: str | Engine | None) -> Engine:
        if engine is None:
            engine = next(iter(self._engines), "")
        if not isinstance(engine, str):
            return engine
        if engine not in self._engines:
            raise NotFound(f"no engine {engine!r}; there are: {', '.join(self._engines) or 'none'}")
        return self._engines[engine]

    async def close_session(self, session: Session) -> None:
        """Cut its calls, record them, and forget it; its key, URL and socket answer 401 or nothing from now on.

        It is carried to its end even if the caller is cancelled meanwhile.
        """
        if self._sessions.pop(session.id, None) is None:
            return
        self._sessions.pop(session.url.rpartition("/")[2], None)
        path = session.target.removeprefix("unix:")
        del self._keys[session.api_key], self._by_socket[path]
        self._words.discard(session.api_key)
        self._servers.pop(session.id).close()
        await finish(self._wind_up(session, Path(path)))

    async def _wind_up(self, session: Session, socket: Path) -> None:
        await asyncio.to_thread(socket.unlink, missing_ok=True)
        await session.end_calls()
        for transport in self._transports.pop(session.id):
            transport.abort()
        log.debug("session %s closed: %s", session.id, session.state)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if self.at_first_use is not None:
                await self._open_stranger(request, self.at_first_use)
            session, path = self._route(request)
            return await self._dispatch(request, session, path)
        except OrchardError as error:
            return error_response(error, dialect_of(request.path, request.headers))

    async def _open_stranger(self, request: web.Request, opens: Callable[[str, str], Awaitable[Session]]) -> None:
        """Open the session that a request to a model names, if nobody knows it yet; only one of them does."""
        found, key = PREFIX.match(request.path), next(filter(None, bearers(request)), "")
        name = found[1] if found else ""
        if not is_for_a_model(request.method, bare(request.path[found.end() :] if found else request.path)):
            return
        async with self._opening:
            if name and name not in self._sessions:
                await opens(name, "")
            elif key and not name and key not in self._keys:
                await opens("", key)
                self._words.add(key)

    def _route(self, request: web.Request) -> tuple[Session, str]:
        """Return the session that a request names, and the path behind the prefix.

        On a session's own socket it is that session: prefix and key are not needed, and another prefix is refused.
        Elsewhere the URL names it, else the key; where both name one, it must be the same, unless the key is just a
        word by which a session was opened.
        """
        path = request.path
        found = PREFIX.match(path)
        named = self._sessions.get(found[1]) if found else None
        here = self._by_socket.get(str(request.transport and request.transport.get_extra_info("sockname")))
        keyed = next((self._keys[key] for key in bearers(request) if key in self._keys), None)
        session = here or named or (keyed if not found else None)
        other = None if here or (keyed and keyed.api_key in self._words) else keyed
        strangers = [one for one in (named, other) if one is not None and one is not session]
        if session is None or strangers or (found and named is not session):
            raise Unauthorized("no such session: wrong key or URL, or the session is closed")
        if here and request.transport is not None:
            self._transports[here.id].add(request.transport)
        return session, path[found.end() :] if found else path

    async def _dispatch(self, request: web.Request, session: Session, path: str) -> web.StreamResponse:
        path = bare(path)
        names = [session.model or session.engine.name, *session.aliases]
        if request.method == "POST" and path in DIALECTS:
            return await self._call(request, session, DIALECTS[path])
        if request.method == "POST" and path == COUNT:
            return await self._count(request, session)
        if request.method == "GET" and path == "/models":
            return web.json_response(models(names, request.headers))
        if request.method == "GET" and path.startswith("/models/"):
            return web.json_response(model(path.removeprefix("/models/"), names, request.headers))
        if request.method in ("GET", "HEAD") and not path:
            return web.Response()
        raise NotFound(f"{request.method} {path or '/'} is not served here")

    async def _count(self, request: web.Request, session: Session) -> web.StreamResponse:
        asked = MESSAGES.parse(await self._body(request), request.headers)
        tokens, estimated = await count_tokens(session.engine, asked)
        return web.json_response({"input_tokens": tokens} | ({"estimated": True} if estimated else {}))

    async def _body(self, request: web.Request) -> bytes:
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise BodyTooLarge(f"the body is larger than {self._config.body_bytes} bytes") from None

    async def _call(self, request: web.Request, session: Session, dialect: Dialect) -> web.StreamResponse:
        session.state.last_call = datetime.now(UTC)
        try:
            body = await self._body(request)
        except BodyTooLarge as error:
            raise await _refused(session, error) from None
        digest = body_digest(dialect.path, body)
        exchange = session.find_again(digest, retry=is_retry(request))
        try:
            asked = dialect.parse(body, request.headers)
            again = exchange is not None
            exchange = exchange or session.admit(asked, dialect, digest)
        except (InvalidArgument, BudgetExceeded) as error:
            raise await _refused(session, error) from None
        if again:
            await session.note_retry(exchange)
        if not asked.stream:
            return await send_whole(request, exchange, dialect, asked)
        silence = Silence(self._config.keep_alive_seconds, self._config.header_grace_seconds)
        return await send_stream(request, exchange, dialect, asked, silence)


async def _refused(session: Session, error: OrchardError) -> OrchardError:
    """Record a refusal, and return what the harness is told: that it failed to be recorded, if so."""
    try:
        await session.refuse(error.code, str(error))
    except StoreFailed as failed:
        return failed
    return error
