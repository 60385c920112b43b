"""Messages as chat templates take them: text in one piece, arguments as objects, roles that templates know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from orchard.gateway.errors import TextOnly
from orchard.trajectories.messages import PARTS, Message, reasoning_of, text_of_part

_REASONING = ("reasoning", "thinking")


def prepared(messages: Sequence[Message], *, developer: bool = False) -> list[Message]:
    """Return the messages as servers hand them to a template.

    Args:
        messages: in OpenAI chat form.
        developer: whether the template knows this role; else it is the system's.

    Raises:
        TextOnly: they hold more than text.
    """
    return [_prepared(message, developer=developer) for message in messages]


def _prepared(message: Message, *, developer: bool) -> Message:
    form = {key: value for key, value in message.items() if value is not None and key not in _REASONING}
    form["content"] = _text(message.get("content"), message.get("role"))
    if reasoning := reasoning_of(message):
        form["reasoning_content"] = reasoning
    if message.get("role") == "developer" and not developer:
        form["role"] = "system"
    calls = cast("list[Message]", message.get("tool_calls") or [])
    form.pop("tool_calls", None)
    return {**form, "tool_calls": [_call(call) for call in calls]} if calls else form


def _text(content: Any, role: object) -> str:
    """See ``PARTS``."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    return PARTS.join(_part(part, role) for part in parts)


def _part(part: Any, role: object) -> str:
    text = text_of_part(part)
    if text is None:
        kind = cast("Message", part).get("type") if isinstance(part, dict) else None
        raise TextOnly(kind, role)
    return text


def _call(call: Message) -> Message:
    function = cast("Message", call.get("function") or {})
    arguments: Any = function.get("arguments")
    parsed: Any = arguments
    with suppress(ValueError):  # what the model wrote is no JSON: the template gets it as it stands
        parsed = json.loads(arguments) if isinstance(arguments, str) and arguments.strip() else arguments or {}
    return {**call, "function": {**function, "arguments": parsed if isinstance(parsed, dict) else arguments}}
