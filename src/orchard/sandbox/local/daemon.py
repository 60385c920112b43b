"""The few words that the host side itself speaks with sandboxd, over its Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, cast

from orchard.core.errors import Unavailable


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("sandbox", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def headers(sandbox_id: str, token: str) -> dict[str, str]:
    """Return what names the sandbox and proves who asks."""
    return {"Orchard-Sandbox": sandbox_id, "Authorization": f"Bearer {token}"}


def ask(path: str, target: str, sent: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """GET one JSON answer of sandboxd, e.g. ``/v1/health``.

    Raises:
        Unavailable: no answer within ``timeout`` seconds, a stranger's, or an error.
    """
    answer, body = _get(path, target, sent, timeout)
    if answer.status != 200 or answer.headers.get("Orchard-Sandbox") != sent["Orchard-Sandbox"]:
        raise Unavailable(f"the sandbox answers {target} with {answer.status}")
    return cast("dict[str, Any]", json.loads(body))


def ask_unnamed(path: str, target: str, timeout: float) -> dict[str, Any]:
    """GET one JSON answer of another local server on a Unix socket.

    Raises:
        Unavailable: no answer within ``timeout`` seconds, or an error.
    """
    answer, body = _get(path, target, {}, timeout)
    if answer.status != 200:
        raise Unavailable(f"{path} answers {target} with {answer.status}")
    return cast("dict[str, Any]", json.loads(body))


def _get(path: str, target: str, sent: Mapping[str, str], timeout: float) -> tuple[http.client.HTTPResponse, bytes]:
    connection = _UnixConnection(path, timeout)
    try:
        connection.request("GET", target, headers=dict(sent))
        answer = connection.getresponse()
        return answer, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{target} is not answered: {error}") from error
    finally:
        connection.close()
