"""The wire of sandboxd below ``/v1/sandboxes/{id}/``: the hot path of every command and file, hence plain ASGI.

An answer passes unchanged but for the headers of the hop and of identity. A break before the answer is ``Unavailable``
or, once the backend says so, ``SandboxGone``.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from orchard.core.errors import Unavailable, from_problem
from orchard.sandbox.protocol import Backend
from orchard.service.directory import Directory, Entry
from orchard.service.keys import Caller
from orchard.service.relay import Relay, Request, forwarded, promptly, returned, send_head
from orchard.service.upstream import Answer, Connection, Headers, Pool

ROOMS = frozenset({"processes", "files", "tree", "manifest", "ports", "reverse", "lease", "stats", "health"})
"""What of the wire is relayed. Tokens and shutdown are the service's own."""

_OURS = frozenset({b"host", b"authorization", b"x-orchard-key", b"cookie", b"orchard-sandbox", b"orchard-request-id"})
_AT_ONCE = (("GET", b"/lease"), ("POST", b"/lease"), ("GET", b"/stats"), ("GET", b"/health"), ("GET", b"/processes"))
"""What sandboxd answers at once, whatever goes on in it."""
_ANSWER_SECONDS = 5.0  # until that, or what the service asks it for itself, counts as lost: its node may be dead
_SMALL = 1 << 16  # bytes of a small answer that are read
_IDENTITY = frozenset({b"orchard-sandbox", b"orchard-version", b"orchard-request-id"})


class DataPath:
    """Relays requests to the sandboxes of one backend."""

    def __init__(self, backend: Backend, directory: Directory, relay: Relay) -> None:
        self._backend, self._directory, self._relay = backend, directory, relay
        self.pool = Pool()

    async def handle(self, request: Request) -> None:
        """Relay one HTTP request.

        Raises:
            OrchardError: why there is no answer, or no whole one.
            Disconnected: the client has gone.
        """
        entry, connection = await self.reach(request.sandbox_id, request.caller)
        target = b"/v1" + request.rest
        if request.scope["query_string"]:
            target += b"?" + request.scope["query_string"]
        headers: Headers = [(b"Host", b"sandbox"), (b"Orchard-Request-Id", request.request_id.encode()), *entry.headers]
        headers += forwarded(request.scope["headers"], _OURS)

        def check(answer: Answer) -> Headers:
            check_identity(answer, entry)
            return returned(answer, _IDENTITY)

        try:
            within = _ANSWER_SECONDS if (request.scope["method"], request.rest) in _AT_ONCE else None
            await self._relay.converse(request, connection, target, headers, check, within)
        except Unavailable as error:
            await self.lost(entry, error)
        finally:
            self.pool.give(entry.endpoint.base, connection)

    async def call(self, sandbox_id: str, caller: Caller, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST a small JSON body to a sandbox for the service itself; return the answer's.

        Raises:
            OrchardError: what the sandbox, or the backend, says.
        """
        entry, connection = await self.reach(sandbox_id, caller)
        data = json.dumps(body).encode()
        headers: Headers = [
            (b"Host", b"sandbox"), (b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(data)),
            *entry.headers,
        ]  # fmt: skip
        try:
            async with promptly(_ANSWER_SECONDS):
                await send_head(connection, "POST", path.encode(), headers)
                await connection.send(data)
                connection.request_done = True
                answer = await connection.read_head()
                check_identity(answer, entry)
                facts = await read_problem(connection, answer)
        except OSError as error:  # also Unavailable
            await self.lost(entry, error if isinstance(error, Unavailable) else Unavailable("the connection broke"))
        finally:
            self.pool.give(entry.endpoint.base, connection)
        if answer.status >= 400:
            raise from_problem(facts)
        return facts

    async def reach(self, sandbox_id: str, caller: Caller) -> tuple[Entry, Connection]:
        """Return a connection to a sandbox of the caller; an address that does not answer is looked up anew, once.

        Raises:
            NotFound: no such sandbox, or another tenant's.
            SandboxGone: it has ended.
            Unavailable: it lives, but cannot be reached.
        """
        entry = await self._directory.find(sandbox_id, caller)
        try:
            return entry, await self.pool.take(entry.endpoint.base)
        except Unavailable:
            self.forget(entry)
            entry = await self._directory.find(sandbox_id, caller)
            return entry, await self.pool.take(entry.endpoint.base)

    def forget(self, entry: Entry) -> None:
        """Drop what is remembered of a sandbox's address."""
        self._directory.forget(entry.id)
        self.pool.drop(entry.endpoint.base)

    async def lost(self, entry: Entry, error: Unavailable) -> NoReturn:
        """Raise what a break means.

        Raises:
            SandboxGone: the backend says that it has ended.
            Unavailable: it lives, and the connection alone broke; the request may have arrived.
        """
        self.forget(entry)
        await self._backend.endpoint(entry.id)
        raise error


def check_identity(answer: Answer, entry: Entry) -> None:
    """Return if the answer is from the sandbox asked for.

    Raises:
        Unavailable: it is a stranger's, or the sandbox does not know us.
    """
    if answer.get(b"orchard-sandbox") != entry.id.encode():
        raise Unavailable("the sandbox's address answered as somebody else", reason="stranger")
    if answer.status in (401, 421):
        raise Unavailable("the sandbox does not accept this service", reason="token")


async def read_problem(connection: Connection, answer: Answer) -> dict[str, Any]:
    """Return a small JSON answer; what is none becomes a problem body that says so."""
    body = await connection.beginning(_SMALL)
    try:
        facts = json.loads(body)
    except ValueError:
        facts = None
    if isinstance(facts, dict):
        return facts
    return {"code": "unavailable", "detail": f"the sandbox answered with status {answer.status}"}
