"""What a request says beside its body: with which keys it comes, and whether it is a retry."""

from __future__ import annotations

from aiohttp import web

_RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count", "retry-attempt")


def bearers(request: web.Request) -> tuple[str, str]:
    """Return the keys that a request carries; some clients send a second one that means nothing."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")


def is_retry(request: web.Request) -> bool:
    """Return whether the client's SDK says that it asks again."""
    values = [request.headers.get(name, "") for name in _RETRY_HEADERS]
    return any(value.isdigit() and int(value) > 0 for value in values)
