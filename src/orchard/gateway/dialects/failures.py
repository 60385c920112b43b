"""Errors as each family of clients knows them: the shape, the type, and how an overflow of the context is told."""

from __future__ import annotations

from typing import Any

from orchard.core.errors import InvalidArgument, OrchardError
from orchard.core.text import carried
from orchard.gateway.dialects.wire import object_of
from orchard.gateway.errors import ContextOverflow, EngineRefused, http_status

_OPENAI = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "server_error"}
_ANTHROPIC = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    503: "api_error",
}  # fmt: skip
"""503 is no ``overloaded_error``: after three of them Claude Code gives up, or asks for another model."""


def overflowed(error: OrchardError) -> bool:
    """Return whether the prompt leaves no room for an answer, as an engine or a server behind it says."""
    code = object_of((error.body or {}).get("error")).get("code") if isinstance(error, EngineRefused) else None
    return isinstance(error, ContextOverflow) or code == ContextOverflow.code


def openai_error(error: OrchardError) -> dict[str, Any]:
    """Return the body of an error in OpenAI's shape; what a server of that shape said is passed on as it is."""
    if isinstance(error, EngineRefused) and error.body is not None and "error" in error.body:
        return carried(error.body)
    kind = _OPENAI.get(http_status(error), "invalid_request_error")
    param = error.field if isinstance(error, InvalidArgument) else None
    return {"error": {"message": carried(str(error)), "type": kind, "param": param, "code": error.code}}


def anthropic_error(error: OrchardError) -> dict[str, Any]:
    """Return the body of an error in Anthropic's shape."""
    kind = _ANTHROPIC.get(http_status(error), "invalid_request_error")
    facts = {"type": kind, "message": _anthropic_words(error), "code": error.code}
    return {"type": "error", "error": facts}


def _anthropic_words(error: OrchardError) -> str:
    if isinstance(error, ContextOverflow):
        return f"prompt is too long: {error.prompt_tokens} tokens > {error.context} maximum"
    theirs = object_of((error.body or {}).get("error")).get("message") if isinstance(error, EngineRefused) else None
    words = carried(theirs if isinstance(theirs, str) else str(error))
    return f"prompt is too long: {words}" if overflowed(error) else words
