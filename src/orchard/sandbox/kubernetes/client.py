"""``Cluster``: objects of the API server as plain JSON, with bounded concurrency, patience and typed errors.

Every write that is sent here is idempotent (named objects, preconditions), so every request may be repeated.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import aiohttp

from orchard.core.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    OrchardError,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from orchard.core.retry import Patience
from orchard.sandbox.answers import translated
from orchard.sandbox.kubernetes.credentials import Access, find_access
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.settings import KubernetesSettings

WINDOW = 60.0  # seconds of unbroken failure until a request gives up; longer than a restart of the API server
PAGE = 500  # objects of one page of a list
_AT_ONCE = 32  # requests of one process at the same moment, watches apart
_SILENCE = 30.0  # seconds without a byte of an answer until it counts as broken
_WATCH_SILENCE = 100.0  # the same of a watch; bookmarks come about every minute
_WATCH_SECONDS = 300
_WATCH_LEAST = 5.0  # seconds; one that ends before and has told nothing is broken: again at once it would be no better
_CONNECT = 5.0
_SERVER_FAULTS = (500, 502, 503, 504)
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_FIELD_MANAGER = "orchard"


class Expired(Unavailable):
    """410: the version asked for, or that of the list under way, is no longer kept by the API server: list anew."""


class Forbidden(Unauthorized):
    """403. ``ours`` is False where we may not ask for such objects at all; else an admission rule refused this one."""

    ours = True
    words = ""
    """The server's own."""


class Cluster:
    """One API server, seen from one event loop.

    Args:
        settings: where it is.
        access: a session to it; see ``find_access``.
        window: seconds of unbroken failure until a request gives up.
    """

    def __init__(self, settings: KubernetesSettings, access: Access, *, window: float = WINDOW) -> None:
        self._settings, self._access, self._window = settings, access, window
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._renewing = asyncio.Lock()
        self.calls = 0
        """Requests sent so far, watches too."""

    @classmethod
    async def connect(cls, settings: KubernetesSettings) -> Cluster:
        """Read the credentials; nothing is sent yet.

        Raises:
            InvalidArgument: there is no way to a cluster.
        """
        return cls(settings, await find_access(settings))

    @property
    def namespace(self) -> str:
        """Where the sandboxes are."""
        return self._access.namespace

    def path(self, kind: str, name: str = "", *, group: str = "") -> str:
        """Return the path of a namespaced collection, or of one object in it: ``path("pods", "x")``."""
        base = f"/apis/{group}" if group else "/api/v1"
        return f"{base}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    async def get(self, path: str, **params: str) -> Json:
        """Return an object.

        Raises:
            NotFound: there is none.
            OrchardError: as ``request``.
        """
        return await self.request("GET", path, params=params)

    async def create(self, path: str, body: Json) -> Json:
        """Make an object and return it as it stands.

        Raises:
            Conflict: ``reason`` ``AlreadyExists``.
            OrchardError: as ``request``.
        """
        return await self.request("POST", path, body=body)

    async def apply(self, path: str, body: Json) -> Json:
        """Make an object or bring our part of it to ``body`` (server-side apply), and return it as it stands."""
        params = {"fieldManager": _FIELD_MANAGER, "force": "true"}
        return await self.request("PATCH", path, params=params, body=body, kind=APPLY)

    async def patch(self, path: str, body: Json) -> Json:
        """Merge ``body`` into an object."""
        return await self.request("PATCH", path, body=body, kind=MERGE)

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> None:
        """Delete an object; one that is not there, or is another by now (``uid``), is fine."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self.request("DELETE", path, body=body)
        except NotFound:
            return
        except Conflict:
            if uid is None:
                raise

    async def pages(self, path: str, **params: str) -> AsyncIterator[Json]:
        """Yield the pages of a list, ``{"metadata": …, "items": […]}``.

        Raises:
            Expired: it took so long that the API server forgot where it was. Pages that came before are of no use then.
            OrchardError: as ``request``.
        """
        following = ""
        while True:
            where = {**params, "limit": str(PAGE)} | ({"continue": following} if following else {})
            page = await self.request("GET", path, params=where)
            yield page
            following = str(page["metadata"].get("continue") or "")
            if not following:
                return

    @asynccontextmanager
    async def watch(self, path: str, version: str, **params: str) -> AsyncGenerator[AsyncIterator[Json]]:
        """Yield the events after ``version``, until the server ends the watch (minutes).

        Raises:
            Expired: ``version`` is no longer kept.
            Unavailable: otherwise; the connection broke, was silent for too long, or ended at once.
        """
        where = {
            **params, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_WATCH_SILENCE)
        response = await self._begin(path, where, timeout)
        try:
            await self._check(response)
            yield _events(response)
        finally:
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()  # a farewell in TLS may outlive the loop
            response.close()

    async def _begin(
        self, path: str, where: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Return the answer to a watch; credentials that have lapsed are read anew: there may be no other request."""
        for last in (False, True):
            self.calls += 1
            access = self._access
            with translated():
                response = await access.request("GET", path, timeout=timeout, headers={}, params=where)
            if response.status != 401 or last:
                return response
            response.close()
            await self._renew(access)
        raise AssertionError("unreachable")

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        kind: str = "application/json",
    ) -> Json:
        """Send, again where the failure may pass, and return the answer.

        Raises:
            NotFound, Conflict, Unauthorized, InvalidArgument: as the server says; ``reason`` is its own word.
            RateLimited: it asked us to wait for longer than a request may take.
            Expired: 410; the same again would be told the same.
            Unavailable: it was not reached for the whole window.
        """
        patience = Patience(self._window, first=0.1, most=5.0)
        data = None if body is None else json.dumps(body).encode()
        while True:
            try:
                async with self._turns:
                    return await self._once(method, path, params, data, kind)
            except RateLimited as error:
                await patience.pause(error, error.retry_after)
            except Expired:
                raise
            except Unavailable as error:
                await patience.pause(error)

    async def _once(
        self, method: str, path: str, params: Mapping[str, str] | None, data: bytes | None, kind: str
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
        for last in (False, True):
            self.calls += 1
            access = self._access
            with translated():
                response = await access.request(
                    method, path, timeout=timeout, headers={"Content-Type": kind}, params=params, data=data
                )
                async with response:
                    if response.status == 401 and not last:
                        await self._renew(access)
                        continue
                    await self._check(response)
                    return _object(await response.read())
        raise AssertionError("unreachable")

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            with translated():
                body = await response.read()
            raise failure(response.status, body, response.headers.get("Retry-After", ""))

    async def _renew(self, stale: Access) -> None:
        """Read the credentials anew, once for all that found them stale."""
        async with self._renewing:
            if self._access is stale:
                self._access = await find_access(self._settings)
                await stale.session.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._access.session.close()


def _object(text: bytes) -> Json:
    """Return the JSON object that an answer holds.

    Raises:
        Unavailable: it holds none, so it was cut, or is not from an API server.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"an answer that is not from a Kubernetes API server: {text[:100]!r}")
    return cast("Json", found)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    began, told = time.monotonic(), False
    with translated():
        async for line in response.content:
            event = _object(line)
            if event["type"] == "ERROR":
                raise failure(int(event["object"].get("code") or 500), json.dumps(event["object"]).encode(), "")
            told = True
            yield event
    if not told and time.monotonic() - began < _WATCH_LEAST:
        raise Unavailable("a watch ended at once")


_KINDS: dict[int, type[OrchardError]] = {
    401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict,
    400: InvalidArgument, 413: InvalidArgument, 422: InvalidArgument,
}  # fmt: skip
_HINTS = {
    401: "are the credentials still good?",
    403: "see what the service account may do: `orchard deploy check`",
}


def failure(status: int, body: bytes, after: str) -> OrchardError:
    """Return the error that an answer of 400 or more stands for; ``reason`` is the server's own word."""
    try:
        facts = cast("Json", json.loads(body))
    except ValueError:
        facts = {}
    details = part(facts, "details")
    words = str(facts.get("message") or body[:300].decode("utf-8", "replace"))
    message = f"the Kubernetes API server answers {status}: {words}"
    reason = str(facts.get("reason") or "") or None
    if status == 410:
        return Expired(message, reason=reason)
    if status == 429:
        seconds = details.get("retryAfterSeconds") or (int(after) if after.isdigit() else 1)
        return RateLimited(message, retry_after=float(seconds), reason=reason)
    if status in _SERVER_FAULTS:
        return Unavailable(message, reason=reason)
    error = _KINDS.get(status, OrchardError)(message, reason=reason, hint=_HINTS.get(status))
    if isinstance(error, Forbidden):
        # What authorization refuses has kind and no name of its own yet; what a webhook refuses has no details.
        error.ours, error.words = bool(details.get("name")) or not details.get("kind"), words
    return error
