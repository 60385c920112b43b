"""Reading a request in OpenAI's responses form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from orchard.core.errors import InvalidArgument
from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.dialects.origin import origin_of
from orchard.gateway.dialects.responses.fields import FIELDS
from orchard.gateway.dialects.responses.tools import flat_name, tool_choice, tools_of
from orchard.gateway.dialects.wire import (
    Sorting,
    call_of,
    content_of,
    flag,
    json_object,
    model_name,
    object_of,
    objects,
    text_of,
)
from orchard.trajectories.messages import Message

_OUR_ITEM = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-z]+)_\d+")
"""Ids under which the items of an answer went out: they tell which ones belong together."""
_REASONING, _TEXT, _CALL = 0, 1, 2


def parse(body: bytes, headers: Mapping[str, str]) -> ModelRequest:
    """See ``Dialect.parse``."""
    known = json_object(body)
    sorting = Sorting(FIELDS)
    params = sorting.params(known)
    items = _items(known.get("input"))
    turns = _Turns(sorting)
    if instructions := known.get("instructions"):
        turns.messages.append({"role": "system", "content": text_of(instructions, "instructions")})
    for item in items:
        turns.take(item)
    if not turns.messages:
        raise InvalidArgument("input must not be empty", field="input")
    extra = [tool for item in items if item.get("type") == "additional_tools" for tool in _listed(item)]
    tools, names = tools_of([*objects(known.get("tools") or [], "tools"), *extra], sorting)
    return ModelRequest(
        model=model_name(known.get("model")), messages=turns.messages, tools=tools,
        params={**params, **_params(known), **tool_choice(known, bool(tools), sorting)},
        stream=flag(known.get("stream"), "stream"), origin=origin_of(headers), wire={"names": names},
        dropped=sorting.dropped,
    )  # fmt: skip


def _items(value: Any) -> list[Message]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return objects(value, "input")


def _listed(item: Message) -> list[Message]:
    return objects(item.get("tools") or [], "input.additional_tools")


def _params(known: Message) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if known.get("max_output_tokens") is not None:
        params["max_completion_tokens"] = known["max_output_tokens"]
    if effort := object_of(known.get("reasoning")).get("effort"):
        params["reasoning_effort"] = effort
    form = object_of(object_of(known.get("text")).get("format"))
    if form.get("type") == "json_schema":
        schema = {key: value for key, value in form.items() if key != "type"}
        params["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        params["response_format"] = {"type": "json_object"}
    return params


class _Turns:
    """Joins the items of one answer into one message: by their ids where they are ours, else by their order."""

    def __init__(self, sorting: Sorting) -> None:
        self.messages: list[Message] = []
        self._sorting = sorting
        self._answer: Message = {}
        self._turn: str | None = None
        self._rank = _CALL
        self._ended = True
        """Whether something else than an answer has followed."""

    def take(self, item: Message) -> None:
        """Add one item."""
        kind = str(item.get("type") or "message")
        if not self._sorting.takes("input", kind):
            return
        if kind == "message":
            self._message(item)
        elif kind == "reasoning":
            self._reasoning(item)
        elif kind in ("function_call", "custom_tool_call"):
            calls = self._part(item, _CALL).setdefault("tool_calls", [])
            calls.append(_call(item, custom=kind == "custom_tool_call"))
        elif kind != "additional_tools":
            content = self._content(item.get("output"), "output")
            call_id = text_of(item.get("call_id"), "input.call_id")
            self._say({"role": "tool", "tool_call_id": call_id, "content": content})

    def _say(self, message: Message) -> None:
        self.messages.append(message)
        self._ended = True

    def _part(self, item: Message, rank: int) -> Message:
        ours = _OUR_ITEM.fullmatch(str(item.get("id") or ""))
        turn = ours[1] if ours else None
        if turn and self._turn:
            same = turn == self._turn
        else:
            same = not self._ended and (rank > self._rank or rank == self._rank != _TEXT)
        if not same:
            self._answer = {"role": "assistant", "content": None}
            self.messages.append(self._answer)
        self._turn, self._rank, self._ended = turn or (self._turn if same else None), rank, self._ended and same
        return self._answer

    def _message(self, item: Message) -> None:
        role = text_of(item.get("role"), "input.role")
        content = self._content(item.get("content"), "content")
        if role == "assistant":
            answer = self._part(item, _TEXT)
            answer["content"] = (answer["content"] or "") + _joined(content)
        else:
            self._say({"role": "system" if role == "developer" else role, "content": content})

    def _reasoning(self, item: Message) -> None:
        parts: Any = item.get("content") or item.get("summary") or []
        text = "".join(str(part.get("text") or "") for part in objects(parts, "input.reasoning"))
        if text:
            answer = self._part(item, _REASONING)
            answer["reasoning_content"] = str(answer.get("reasoning_content") or "") + text
        elif item.get("encrypted_content"):
            self._sorting.drop("input.reasoning.encrypted_content")

    def _content(self, value: Any, field: str) -> Any:
        if isinstance(value, str):
            return value
        parts = objects([] if value is None else value, field)
        kinds = [(part, str(part.get("type"))) for part in parts]
        return content_of([_content_part(part, kind) for part, kind in kinds if self._sorting.takes("content", kind)])


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in cast("list[Message]", content)]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidArgument("the model's own messages are text", field="input")
    return "".join(cast("list[str]", texts))


def _content_part(part: Message, kind: str) -> Message:
    if kind == "input_image":
        url = text_of(part.get("image_url"), "content.image_url")
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": url, **detail}}
    if kind == "input_file":
        names = ("file_data", "file_id", "filename")
        return {"type": "file", "file": {name: part[name] for name in names if part.get(name)}}
    return {"type": "text", "text": text_of(part.get("refusal" if kind == "refusal" else "text"), "content.text")}


def _call(item: Message, *, custom: bool) -> Message:
    name = flat_name(item.get("namespace"), text_of(item.get("name"), "input.name"))
    call_id = text_of(item.get("call_id"), "input.call_id")
    if custom:
        return call_of(call_id, name, json.dumps({"input": text_of(item.get("input"), "input.input")}))
    return call_of(call_id, name, text_of(item.get("arguments"), "input.arguments"))
