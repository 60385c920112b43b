"""What a request says beside its body: what its path names, with which keys it comes, and whether it is a retry."""

from __future__ import annotations

import re

from aiohttp import web

from orchard.gateway.dialects import DIALECTS, MESSAGES

PREFIX = re.compile(r"/s/([A-Za-z0-9][A-Za-z0-9._-]{0,199})(?=/|$)")
"""Names a session in a path."""
COUNT = MESSAGES.path + "/count_tokens"
_ROOT = re.compile(r"(?:/api)?(?:/v1)*(?=/|$)")
"""What clients put before a path, those included that add a second ``/v1`` to a base URL that has one."""
_COUNTED = re.compile(r"[0-9]{1,9}")
_RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count", "retry-attempt")


def bare(path: str) -> str:
    """Return a path, behind a session's prefix, as a dialect names its own."""
    return _ROOT.sub("", path, count=1).rstrip("/")


def is_for_a_model(method: str, path: str) -> bool:
    """Return whether a request to this bare path asks a model, or of one."""
    if method == "POST":
        return path in DIALECTS or path == COUNT
    return method == "GET" and (path == "/models" or path.startswith("/models/"))


def bearers(request: web.Request) -> tuple[str, str]:
    """Return the keys that a request carries; some clients send a second one that means nothing."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")


def is_retry(request: web.Request) -> bool:
    """Return whether the client's SDK says that it asks again."""
    values = [request.headers.get(name, "") for name in _RETRY_HEADERS]
    return any(_COUNTED.fullmatch(value) and int(value) > 0 for value in values)
