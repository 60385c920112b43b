"""The few words that the service itself speaks with sandboxd, straight to the Pod's address."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import aiohttp

from orchard.core.errors import Unavailable
from orchard.sandbox.answers import check_identity, translated
from orchard.sandbox.kubernetes.identity import ServiceKey
from orchard.sandbox.kubernetes.objects import Json
from orchard.sandbox.kubernetes.pod import PORT
from orchard.sandbox.types import Endpoint

_FIRST_PAUSE = 0.004
_LONGEST_PAUSE = 0.25
_TRY_SECONDS = 2.0


class Daemons:
    """Asks daemons by address and id."""

    def __init__(self, key: ServiceKey) -> None:
        self._key = key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), cookie_jar=aiohttp.DummyCookieJar()
        )

    def endpoint(self, sandbox_id: str, address: str) -> Endpoint:
        """Return how to reach the daemon of ``sandbox_id`` at ``address``."""
        headers = {"Orchard-Sandbox": sandbox_id, "Authorization": f"Bearer {self._key.token(sandbox_id)}"}
        return Endpoint(f"http://{address}:{PORT}", "/v1", headers, sandbox_id)

    async def ask(
        self, sandbox_id: str, address: str, path: str, *, body: Json | None = None, seconds: float = _TRY_SECONDS
    ) -> Json:
        """Return one JSON answer, e.g. of ``/health``; with a ``body`` it is posted.

        Raises:
            Unavailable: no answer in time, a stranger's, or an error.
        """
        where = self.endpoint(sandbox_id, address)
        url, method = where.base + where.prefix + path, "GET" if body is None else "POST"
        with translated():
            try:
                async with asyncio.timeout(seconds):
                    async with self._session.request(method, url, headers=where.headers, json=body) as answer:
                        check_identity(answer.headers, sandbox_id, answer.status)
                        text = await answer.read()
            except TimeoutError as error:
                raise Unavailable(f"sandbox {sandbox_id} does not answer in {seconds:g} s") from error
        if answer.status != 200:
            raise Unavailable(f"sandbox {sandbox_id} answers {path} with {answer.status}: {text[:200]!r}")
        return cast("Json", json.loads(text))

    async def greet(self, sandbox_id: str, address: str) -> None:
        """Return once the daemon answers, asking again every few milliseconds at first."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self.ask(sandbox_id, address, "/health")
                return
            except Unavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 1.25, _LONGEST_PAUSE)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
