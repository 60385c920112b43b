"""OpenAI chat completions: only translation, between the wire and the common form (which is this dialect's)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

from orchard.core.errors import InvalidArgument, OrchardError
from orchard.core.text import carried
from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.engine import Delta, Final
from orchard.gateway.errors import EngineRefused, http_status
from orchard.trajectories.messages import Message

_OURS = frozenset({"model", "messages", "tools", "stream", "stream_options", "n"})
"""Fields that the gateway itself understands; the rest goes to the engine as it is."""
_TYPES = {401: "authentication_error", 404: "not_found_error", 503: "server_error"}


class Chat:
    """``POST /chat/completions``."""

    name = "openai.chat"
    path = "/chat/completions"
    id_prefix = "chatcmpl"
    keep_alive = b": keep-alive\n\n"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """See ``Dialect.parse``."""
        known = json_object(body)
        if known.get("n") not in (None, 1):
            raise InvalidArgument("only n = 1 is served: ask again for another sample", field="n")
        options = known.get("stream_options")
        usage = isinstance(options, dict) and bool(cast("Message", options).get("include_usage"))
        return ModelRequest(
            model=model_name(known.get("model")),
            messages=_messages(known.get("messages")),
            tools=objects(known.get("tools") or [], "tools"),
            params={key: value for key, value in known.items() if key not in _OURS},
            stream=bool(known.get("stream")),
            wire={"include_usage": usage},
        )

    def answer(self, asked: ModelRequest, response_id: str, model: str, final: Final) -> bytes:
        """See ``Dialect.answer``."""
        choice: dict[str, Any] = {"index": 0, "message": final.message, "finish_reason": final.finish_reason}
        choice["logprobs"] = final.raw_logprobs
        head = _head(response_id, model, "chat.completion")
        return json.dumps({**head, "choices": [choice], "usage": _usage(final)}).encode()

    def events(self, asked: ModelRequest, response_id: str, model: str) -> ChatEvents:
        """See ``Dialect.events``."""
        return ChatEvents(_head(response_id, model, "chat.completion.chunk"), usage=asked.wire["include_usage"])

    def error_body(self, error: OrchardError) -> dict[str, Any]:
        """See ``Dialect.error_body``; what an engine said is passed on as it is."""
        if isinstance(error, EngineRefused) and error.body is not None and "error" in error.body:
            return carried(error.body)
        kind = _TYPES.get(http_status(error), "invalid_request_error")
        param = error.field if isinstance(error, InvalidArgument) else None
        return {"error": {"message": carried(str(error)), "type": kind, "param": param, "code": error.code}}


class ChatEvents:
    """Chunks of one answer."""

    def __init__(self, head: dict[str, Any], *, usage: bool) -> None:
        self._head, self._with_usage = head, usage

    def begin(self) -> bytes:
        """Nothing goes out before the first delta."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Return the chunk of one delta."""
        choice = {"index": 0, "delta": delta.delta, "logprobs": delta.logprobs, "finish_reason": None}
        return event({**self._head, "choices": [choice]})

    def end(self, final: Final) -> bytes:
        """Return the chunks that end it."""
        choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": final.finish_reason}
        events = [event({**self._head, "choices": [choice]})]
        if self._with_usage:
            events.append(event({**self._head, "choices": [], "usage": _usage(final)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def failed(self, error: OrchardError) -> bytes:
        """Return the event of a final error."""
        return event(CHAT.error_body(error))


def json_object(body: bytes) -> dict[str, Any]:
    """Return a body that must be one JSON object.

    Raises:
        InvalidArgument: it is not.
    """
    try:
        facts = carried(json.loads(body))
    except ValueError as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
    if not isinstance(facts, dict):
        raise InvalidArgument("the body must be a JSON object")
    return cast("dict[str, Any]", facts)


def model_name(value: Any) -> str:
    """Return the name of a model as a request says it.

    Raises:
        InvalidArgument: no name looks like that.
    """
    text = str(value or "")
    if not text.isprintable() or "\ufffd" in text:
        raise InvalidArgument("the model's name holds characters that no name has", field="model")
    return text


def _messages(value: Any) -> list[Message]:
    messages = objects(value, "messages")
    if not messages:
        raise InvalidArgument("messages must not be empty", field="messages")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise InvalidArgument(f"messages[{index}] has no role", field=f"messages[{index}].role")
    return messages


def objects(value: Any, field: str) -> list[Message]:
    """Return a list of JSON objects.

    Raises:
        InvalidArgument: it is none; ``field`` is named.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[Any]", value)):
        raise InvalidArgument(f"{field} must be a list of objects", field=field)
    return cast("list[Message]", value)


def models(names: list[str]) -> dict[str, Any]:
    """Return the body of ``GET /models``."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    """Return the body of ``GET /models/NAME``."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "orchard"}


def _head(response_id: str, model_name: str, kind: str) -> dict[str, Any]:
    return {"id": response_id, "object": kind, "created": int(time.time()), "model": model_name}


def _usage(final: Final) -> dict[str, Any]:
    usage = final.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def event(facts: dict[str, Any]) -> bytes:
    """Return one server-sent event without a name."""
    return b"data: " + json.dumps(facts).encode() + b"\n\n"


CHAT = Chat()
