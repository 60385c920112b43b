"""Errors as problem+json, on HTTP and in the denial of a WebSocket."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from orchard.core.errors import InternalError, OrchardError, RateLimited, Unauthorized

log = logging.getLogger("orchard.service")
CONTENT_TYPE = b"application/problem+json"


def behind_the_door(error: OrchardError, request_id: str) -> OrchardError:
    """Return what a caller who was let in is told: his key is good, so it is the service that something refuses."""
    if not isinstance(error, Unauthorized):
        return error
    log.error("in request %s the service itself was refused: %s", request_id, error)
    return InternalError(f"the service itself is not let in: {error.message}", hint=error.hint)


def problem(error: OrchardError, request_id: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body that tell ``error``."""
    facts = {**error.to_problem(), "request_id": error.request_id or request_id}
    body = json.dumps(facts).encode()
    headers = [(b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(body))]
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    return error.status, headers, body


async def send_problem(scope: dict[str, Any], send: Any, error: OrchardError, request_id: str) -> None:
    """Answer with ``error``: as an HTTP answer, or as the refusal of a WebSocket that was not accepted yet."""
    status, headers, body = problem(error, request_id)
    await send_plain(scope, send, status, headers, body)


async def send_plain(
    scope: dict[str, Any], send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Answer with a small whole body, on either kind of connection."""
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body, "more_body": False})
