"""``RemoteBackend``: a service's control plane as a backend. What happens in a sandbox goes over its endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from orchard.core.errors import InternalError, InvalidArgument, OrchardError, Unavailable, Unsupported
from orchard.core.ids import check_id, check_key, new_id
from orchard.core.tasks import finish
from orchard.sandbox.answers import BROKEN
from orchard.sandbox.box import gone
from orchard.sandbox.protocol import Capabilities
from orchard.sandbox.remote.models import (
    AccessBody,
    CapabilitiesBody,
    CommitBody,
    DigestBody,
    ImageBody,
    SpecBody,
)
from orchard.sandbox.sessions import Sessions
from orchard.sandbox.transport import RETRY_WINDOW, Call, Reply, Transport, query
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec, State

_ASK_AGAIN = 25.0  # seconds that long work is held open by the service; below the time-outs of proxies in between
_UNDO_BOUND = 5.0  # seconds that a cancelled create waits for its undoing
_FIRST_CONTACT = 10.0  # seconds of failure after which a service that never answered counts as not there
_SILENCE = 330.0  # seconds without an answer until it counts as broken
_ANSWER = 2.0  # seconds until a sandbox that does not answer at its own address counts as not to be reached there
_DETOUR = 60.0  # seconds for which all go through the service then
_STRANGER = "is the URL (ORCHARD_URL) that of `orchard serve`, and its version ours?"
M = TypeVar("M")


class RemoteBackend:
    """Sandboxes of a service, by HTTP.

    Every call may be repeated: creates, deletes and commits carry an idempotency key, so that a 502 of a proxy in
    between or a restart of the service does nothing twice.

    Args:
        url: of the service: ``https://orchard.example``, with a path if it lies below one.
        api_key: sent as a bearer token, never in a URL; None: no key, for a service without.
        retry_window: seconds of unbroken failure until a call gives up.
        direct: speak with sandboxes at their own addresses where they can be reached from here (in their cluster),
            with short-lived tokens that the service hands out; else, and once that fails, through the service.
    """

    name = "remote"

    def __init__(
        self, url: str, *, api_key: str | None = None, retry_window: float = RETRY_WINDOW, direct: bool = False
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise InvalidArgument(f"the service's URL must be like https://host:port, not {url!r}", field="url")
        api_key = (api_key or "").strip()  # files of secrets end in a new line
        if not (api_key.isascii() and api_key.isprintable()):
            raise InvalidArgument("the API key holds characters that no request can carry", field="api_key")
        self._url, self._window = url.rstrip("/"), retry_window
        self._heard = False
        self._direct_from = 0.0 if direct else math.inf
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._sessions = Sessions()
        self._transport = Transport(Endpoint(self._url, "/v1", self._headers), sessions=self._sessions)

    def __repr__(self) -> str:
        return f"RemoteBackend({self._url!r})"

    async def capabilities(self) -> Capabilities:
        """Return what the service's backend cannot do."""
        return Capabilities((await self._ask(CapabilitiesBody, "GET", "/capabilities")).exceptions)

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        """Make a sandbox and return once a command works in it. Cancelled, it leaves nothing.

        Raises:
            CreateFailed: with the reason; nothing is left of it.
            QuotaExceeded: the tenant has too many alive.
            OrchardError: as the service says.
        """
        body, key = SpecBody.of(spec).model_dump(mode="json"), check_key(key, "key")
        try:
            return _parsed(SandboxInfo, await self._finished("/sandboxes", body, key))
        except asyncio.CancelledError:
            await finish(self._undo(key))
            raise

    async def _undo(self, key: str) -> None:
        with contextlib.suppress(OrchardError, TimeoutError):  # its TTL ends what cannot be undone now
            async with asyncio.timeout(_UNDO_BOUND):
                await self._send("DELETE", f"/creates/{key}")

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return what is known, also after the end.

        Raises:
            NotFound: no such sandbox, or another tenant's.
        """
        return await self._ask(SandboxInfo, "GET", f"/sandboxes/{check_id(sandbox_id, 'sandbox_id')}")

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return the tenant's living sandboxes whose labels include ``labels``, oldest first."""
        wanted: list[str | bytes] = [f"{name}={value}" for name, value in (labels or {}).items()]
        where = query(label=wanted, limit=limit, cursor=cursor)
        return await self._ask(Page, "GET", "/sandboxes", where)

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        """End it; with ``wait``, return once nothing of it is left there.

        Raises:
            NotFound: no such sandbox, ever.
        """
        path = f"/sandboxes/{check_id(sandbox_id, 'sandbox_id')}"
        await self._send("DELETE", path, query(wait=int(wait)), key=new_id("key"))

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Return how to reach it: through the service, or at its own address if that was asked for and answers.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended; with the reason.
        """
        info = await self.get(sandbox_id)
        if info.state is State.GONE:
            raise gone(info)
        if time.monotonic() >= self._direct_from:
            if (direct := await self._direct(sandbox_id)) is not None:
                return direct
            self._direct_from = time.monotonic() + _DETOUR
        prefix = f"/v1/sandboxes/{sandbox_id}"
        return Endpoint(self._url, prefix, self._headers, sandbox_id, tunnel="websocket")

    async def _direct(self, sandbox_id: str) -> Endpoint | None:
        """Return the sandbox's own address once it has answered there; None: it is not to be reached from here."""
        try:
            access = _parsed(AccessBody, await self._send("POST", f"/sandboxes/{sandbox_id}/access", key=new_id("key")))
        except Unsupported:
            return None
        headers = {"Orchard-Sandbox": sandbox_id, "Authorization": f"Bearer {access.token}"}
        endpoint = Endpoint(access.base, "/v1", headers, sandbox_id, lapses=True)
        try:
            async with asyncio.timeout(_ANSWER):
                probe = Call("GET", "/health", window=0.0)
                await Transport(endpoint, sessions=self._sessions).request(probe)
        except (Unavailable, TimeoutError):
            return None
        return endpoint

    async def commit(self, sandbox_id: str, name: str) -> str:
        """Stop the sandbox and turn its changes into an image; return the digest."""
        path = f"/sandboxes/{check_id(sandbox_id, 'sandbox_id')}/commit"
        body = CommitBody(name=name).model_dump()
        digest = _parsed(DigestBody, await self._finished(path, body, new_id("key"))).digest
        if digest is None:
            raise InternalError("the service named no digest for the new image")
        return digest

    async def resolve_image(self, image: str) -> str | None:
        """Have the image fetched there; return its digest, or None where it has none."""
        body = ImageBody(image=image).model_dump()
        return _parsed(DigestBody, await self._finished("/images", body, new_id("key"))).digest

    async def close(self) -> None:
        """Close the connections of the running loop. Sandboxes live on."""
        await self._sessions.close()

    async def _ask(self, model: type[M], method: str, path: str, where: str = "") -> M:
        return _parsed(model, await self._send(method, path, where))

    async def _finished(self, path: str, body: Any, key: str) -> Reply:
        """Have work done that may take long, and return the answer: no single request is silent for long."""
        while True:
            reply = await self._send("POST", path, query(wait=_ASK_AGAIN), json=body, key=key)
            if reply.status != 202:
                return reply

    async def _send(
        self, method: str, path: str, where: str = "", *, json: Any = None, key: str | None = None
    ) -> Reply:
        headers = {"Idempotency-Key": key} if key else {}
        window = self._window if self._heard else min(self._window, _FIRST_CONTACT)
        call = Call(method, path, where, json=json, headers=headers, window=window, silence=_SILENCE)
        try:
            reply = await self._transport.request(call)
        except OrchardError as error:
            if error.reason == BROKEN and not self._heard:
                error.hint = error.hint or _STRANGER
            self._heard = self._heard or (error.reason != BROKEN and not isinstance(error, Unavailable))
            raise
        self._heard = True
        return reply


@cache
def _reader(model: type[M]) -> TypeAdapter[M]:
    return TypeAdapter(model)


def _parsed(model: type[M], reply: Reply) -> M:
    try:
        return _reader(model).validate_json(reply.body)
    except ValidationError as error:
        raise InternalError("the answer is not one of this service", hint=_STRANGER) from error
