"""OpenAI chat completions: only translation, between the wire and the common form (which is this dialect's)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from orchard.core.errors import InvalidArgument, OrchardError
from orchard.core.text import carried
from orchard.gateway.engine import Delta, Final
from orchard.gateway.errors import EngineRefused, http_status
from orchard.trajectories.messages import Message

NAME = "openai.chat"
_OURS = frozenset({"model", "messages", "tools", "stream", "stream_options", "n"})
"""Fields that the gateway itself understands; the rest goes to the engine as it is."""
KEEP_ALIVE = b": keep-alive\n\n"
_TYPES = {401: "authentication_error", 404: "not_found_error", 503: "server_error"}


@dataclass(frozen=True)
class ChatRequest:
    """A request in the common form."""

    model: str
    messages: list[Message]
    tools: list[Message]
    params: dict[str, Any]
    stream: bool
    include_usage: bool
    """The stream is to end with a chunk that holds the usage."""


def parse(body: bytes) -> ChatRequest:
    """Read the body of ``POST /chat/completions``.

    Raises:
        InvalidArgument: it is not one that can be answered; ``field`` names what.
    """
    try:
        facts = carried(json.loads(body))
    except ValueError as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
    if not isinstance(facts, dict):
        raise InvalidArgument("the body must be a JSON object")
    known = cast("dict[str, Any]", facts)
    if known.get("n") not in (None, 1):
        raise InvalidArgument("only n = 1 is served: ask again for another sample", field="n")
    options = known.get("stream_options")
    return ChatRequest(
        model=_model(known.get("model")),
        messages=_messages(known.get("messages")),
        tools=_objects(known.get("tools") or [], "tools"),
        params={key: value for key, value in known.items() if key not in _OURS},
        stream=bool(known.get("stream")),
        include_usage=isinstance(options, dict) and bool(cast("Message", options).get("include_usage")),
    )


def _model(value: Any) -> str:
    text = str(value or "")
    if not text.isprintable() or "\ufffd" in text:
        raise InvalidArgument("the model's name holds characters that no name has", field="model")
    return text


def _messages(value: Any) -> list[Message]:
    messages = _objects(value, "messages")
    if not messages:
        raise InvalidArgument("messages must not be empty", field="messages")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise InvalidArgument(f"messages[{index}] has no role", field=f"messages[{index}].role")
    return messages


def _objects(value: Any, field: str) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[Any]", value)):
        raise InvalidArgument(f"{field} must be a list of objects", field=field)
    return cast("list[Message]", value)


def answer(response_id: str, model: str, final: Final) -> bytes:
    """Return the body of a whole answer."""
    choice: dict[str, Any] = {"index": 0, "message": final.message, "finish_reason": final.finish_reason}
    choice["logprobs"] = final.raw_logprobs
    head = _head(response_id, model, "chat.completion")
    return json.dumps({**head, "choices": [choice], "usage": _usage(final)}).encode()


def chunk(response_id: str, model: str, delta: Delta) -> bytes:
    """Return the event of one delta."""
    choice = {"index": 0, "delta": delta.delta, "logprobs": delta.logprobs, "finish_reason": None}
    return _event({**_head(response_id, model, "chat.completion.chunk"), "choices": [choice]})


def ending(response_id: str, model: str, final: Final, *, include_usage: bool) -> Iterator[bytes]:
    """Yield the events that end a stream: they leave only once the call is durable."""
    head = _head(response_id, model, "chat.completion.chunk")
    choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": final.finish_reason}
    yield _event({**head, "choices": [choice]})
    if include_usage:
        yield _event({**head, "choices": [], "usage": _usage(final)})
    yield b"data: [DONE]\n\n"


def error_event(error: OrchardError) -> bytes:
    """Return the event that ends a stream with a final error."""
    return _event(error_body(error))


def error_body(error: OrchardError) -> dict[str, Any]:
    """Return the body of an error; what an engine said is passed on as it is."""
    if isinstance(error, EngineRefused) and error.body is not None and "error" in error.body:
        return carried(error.body)
    kind = _TYPES.get(http_status(error), "invalid_request_error")
    param = error.field if isinstance(error, InvalidArgument) else None
    return {"error": {"message": carried(str(error)), "type": kind, "param": param, "code": error.code}}


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


def _event(facts: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(facts).encode() + b"\n\n"
