"""What an answer, or the lack of one, means: HTTP outcomes turned into the error tree, once for all."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import aiohttp

from orchard.core.errors import NotFound, OrchardError, Unavailable, from_problem

NOT_SENT = "not_sent"  # no connection was made: nothing can have happened
BROKEN = "broken"  # the connection broke, or a stranger answered: anything may have happened
_GATEWAY = (502, 503, 504)


def check_identity(headers: Mapping[str, str], sandbox_id: str, status: int) -> None:
    """Return if the answer is from the sandbox ``sandbox_id``.

    Raises:
        Unavailable: it is a stranger's, and counts as no answer.
    """
    if sandbox_id and headers.get("Orchard-Sandbox") != sandbox_id:
        raise Unavailable(f"the answer (status {status}) is not from sandbox {sandbox_id}", reason=BROKEN)


def problem_of(status: int, headers: Mapping[str, str], body: bytes) -> OrchardError:
    """Return the error that an answer of 400 or more stands for."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:  # each of ours has one
        kind = Unavailable if status in _GATEWAY else NotFound if status == 404 else OrchardError
        return kind(f"answer with status {status}: {body[:200].decode('utf-8', 'replace')}", reason=BROKEN)
    after = headers.get("Retry-After", "")
    seconds = float(after) if after.replace(".", "", 1).isdigit() else None
    return from_problem(cast("dict[str, Any]", problem), retry_after=seconds)


async def next_piece(response: aiohttp.ClientResponse) -> bytes:
    """Return what has come of a body since the last call, waiting for some; empty at its end.

    Raises:
        Unavailable: the connection broke.
    """
    with translated():
        return await response.content.readany()


@contextmanager
def translated() -> Generator[None]:
    """Turn what the HTTP library and the network raise into ``Unavailable``, most specific first."""
    try:
        yield
    except OrchardError:
        raise
    except aiohttp.ClientConnectorError as error:
        raise Unavailable(f"no connection: {error.strerror or error}", reason=NOT_SENT) from error
    except aiohttp.ConnectionTimeoutError as error:
        raise Unavailable("no connection in time", reason=NOT_SENT) from error
    except (aiohttp.ClientError, OSError, EOFError) as error:
        raise Unavailable(f"the connection broke: {type(error).__name__}: {error}", reason=BROKEN) from error
