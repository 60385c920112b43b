"""OpenAI chat completions: only translation, between the wire and the common form (which is this dialect's)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

from orchard.core.errors import InvalidArgument, OrchardError
from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.dialects.failures import openai_error
from orchard.gateway.dialects.origin import origin_of
from orchard.gateway.dialects.wire import (
    ANY,
    Field,
    Sorting,
    event,
    flag,
    json_object,
    model_name,
    object_of,
    objects,
    passed,
    text_of,
    translated,
)
from orchard.gateway.engine import Delta, Final
from orchard.trajectories.messages import Message

FIELDS: Mapping[str, Field] = {
    "model": translated("any name is taken; the engine is asked for the session's own, where it has one"),
    "messages": translated("this is the common form: they stay as they are"),
    "tools": translated("this is the common form: they stay as they are"),
    "stream": translated("server-sent events, or one answer"),
    "stream_options": translated("`include_usage`: a last event with the usage"),
    "n": translated("1; any other number is refused"),
    ANY: passed("to the engine, under the same name; one of tokens drops or refuses what it does not know (tokens.md)"),
}


class Chat:
    """``POST /chat/completions``."""

    name = "openai.chat"
    path = "/chat/completions"
    id_prefix = "chatcmpl"
    fields = FIELDS

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """See ``Dialect.parse``."""
        known = json_object(body)
        if (count := known.get("n")) is not None and (type(count) is not int or count != 1):
            raise InvalidArgument("only n = 1 is served: ask again for another sample", field="n")
        options = object_of(known.get("stream_options"))
        return ModelRequest(
            model=model_name(known.get("model")),
            messages=_messages(known.get("messages")),
            tools=_tools(known.get("tools")),
            params=Sorting(FIELDS).params(known),
            stream=flag(known.get("stream"), "stream"),
            origin=origin_of(headers),
            wire={"include_usage": flag(options.get("include_usage"), "stream_options.include_usage")},
        )

    def answer(self, asked: ModelRequest, response_id: str, model: str, final: Final) -> bytes:
        """See ``Dialect.answer``."""
        choice: dict[str, Any] = {"index": 0, "message": final.message, **_stopped(final)}
        choice["logprobs"] = final.raw_logprobs
        head = _head(response_id, model, "chat.completion")
        return json.dumps({**head, "choices": [choice], "usage": _usage(final)}).encode()

    def events(self, asked: ModelRequest, response_id: str, model: str) -> ChatEvents:
        """See ``Dialect.events``."""
        return ChatEvents(_head(response_id, model, "chat.completion.chunk"), usage=asked.wire["include_usage"])

    def error_body(self, error: OrchardError) -> dict[str, Any]:
        """See ``Dialect.error_body``."""
        return openai_error(error)

    def told_in_stream(self, error: OrchardError) -> bool:
        """See ``Dialect.told_in_stream``."""
        return False


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

    def alive(self) -> bytes:
        """Return a comment."""
        return b": keep-alive\n\n"

    def end(self, final: Final) -> bytes:
        """Return the chunks that end it."""
        choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, **_stopped(final)}
        events = [event({**self._head, "choices": [choice]})]
        if self._with_usage:
            events.append(event({**self._head, "choices": [], "usage": _usage(final)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def failed(self, error: OrchardError) -> bytes:
        """Return the event of a final error."""
        return event(openai_error(error))


def _messages(value: Any) -> list[Message]:
    messages = objects(value, "messages")
    if not messages:
        raise InvalidArgument("messages must not be empty", field="messages")
    for at, message in enumerate(messages):
        _check(message, f"messages[{at}]")
    return messages


def _check(message: Message, at: str) -> None:
    """See that a message is of the form that everything behind the dialects counts on; other fields may be anything."""
    text_of(message.get("role"), f"{at}.role")
    content = message.get("content")
    if isinstance(content, list):
        for number, part in enumerate(objects(cast("list[Any]", content), f"{at}.content")):
            if text_of(part.get("type"), f"{at}.content[{number}].type") == "text":
                text_of(part.get("text"), f"{at}.content[{number}].text")
    elif content is not None:
        text_of(content, f"{at}.content")
    for number, call in enumerate(objects(_or_empty(message.get("tool_calls")), f"{at}.tool_calls")):
        _check_call(call, f"{at}.tool_calls[{number}]")
    if message.get("tool_call_id") is not None:
        text_of(message["tool_call_id"], f"{at}.tool_call_id")


def _check_call(call: Message, at: str) -> None:
    if call.get("id") is not None:
        text_of(call["id"], f"{at}.id")
    if call.get("type") == "custom":
        return
    function = _function(call, at)
    if not isinstance(function.get("arguments"), dict | None):
        text_of(function["arguments"], f"{at}.function.arguments")


def _function(holder: Message, at: str) -> Message:
    function: Any = holder.get("function")
    if not isinstance(function, dict):
        raise InvalidArgument(f"{at}.function must be an object", field=f"{at}.function")
    text_of(cast("Message", function).get("name"), f"{at}.function.name")
    return cast("Message", function)


def _tools(value: Any) -> list[Message]:
    tools = objects(_or_empty(value), "tools")
    for at, tool in enumerate(tools):
        if tool.get("type", "function") == "function":
            _function(tool, f"tools[{at}]")
    return tools


def _or_empty(value: Any) -> Any:
    return [] if value is None else value


def _head(response_id: str, model_name: str, kind: str) -> dict[str, Any]:
    return {"id": response_id, "object": kind, "created": int(time.time()), "model": model_name}


def _stopped(final: Final) -> dict[str, Any]:
    told = {} if final.stop_string is None else {"stop_reason": final.stop_string}  # vLLM's word; OpenAI has none
    return {"finish_reason": final.finish_reason, **told}


def _usage(final: Final) -> dict[str, Any]:
    usage = final.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


CHAT = Chat()
