"""Anthropic messages, over server-sent events or whole: only translation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchard.core.errors import OrchardError
from orchard.gateway.dialects.anthropic.answer import MessageEvents, answer
from orchard.gateway.dialects.anthropic.fields import FIELDS
from orchard.gateway.dialects.anthropic.request import parse
from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.dialects.failures import anthropic_error
from orchard.gateway.engine import Final


class Messages:
    """``POST /messages``."""

    name = "anthropic.messages"
    path = "/messages"
    id_prefix = "msg"
    fields = FIELDS

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """See ``Dialect.parse``."""
        return parse(body, headers)

    def answer(self, asked: ModelRequest, response_id: str, model: str, final: Final) -> bytes:
        """See ``Dialect.answer``."""
        return json.dumps(answer(response_id, model, final)).encode()

    def events(self, asked: ModelRequest, response_id: str, model: str) -> MessageEvents:
        """See ``Dialect.events``."""
        return MessageEvents(response_id, model)

    def error_body(self, error: OrchardError) -> dict[str, Any]:
        """See ``Dialect.error_body``."""
        return anthropic_error(error)

    def told_in_stream(self, error: OrchardError) -> bool:
        """See ``Dialect.told_in_stream``."""
        return False


MESSAGES = Messages()
