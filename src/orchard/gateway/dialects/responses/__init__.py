"""OpenAI responses, over server-sent events or whole: only translation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchard.core.errors import OrchardError
from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.dialects.failures import openai_error, overflowed
from orchard.gateway.dialects.responses.answer import ResponseEvents, answer
from orchard.gateway.dialects.responses.fields import FIELDS
from orchard.gateway.dialects.responses.request import parse
from orchard.gateway.engine import Final


class Responses:
    """``POST /responses``."""

    name = "openai.responses"
    path = "/responses"
    id_prefix = "resp"
    fields = FIELDS

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """See ``Dialect.parse``."""
        return parse(body, headers)

    def answer(self, asked: ModelRequest, response_id: str, model: str, final: Final) -> bytes:
        """See ``Dialect.answer``."""
        return json.dumps(answer(response_id, model, asked.wire["names"], final)).encode()

    def events(self, asked: ModelRequest, response_id: str, model: str) -> ResponseEvents:
        """See ``Dialect.events``."""
        return ResponseEvents(response_id, model, asked.wire["names"])

    def error_body(self, error: OrchardError) -> dict[str, Any]:
        """See ``Dialect.error_body``."""
        return openai_error(error)

    def told_in_stream(self, error: OrchardError) -> bool:
        """See ``Dialect.told_in_stream``; Codex knows an overflow only as ``response.failed``."""
        return overflowed(error)


RESPONSES = Responses()
