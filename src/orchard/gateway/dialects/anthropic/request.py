"""Reading a request in Anthropic's messages form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchard.core.errors import InvalidArgument
from orchard.gateway.dialects.anthropic.fields import FIELDS
from orchard.gateway.dialects.anthropic.signature import signature
from orchard.gateway.dialects.anthropic.tools import offered, tool_choice, tools_of
from orchard.gateway.dialects.base import ModelRequest, Origin
from orchard.gateway.dialects.origin import origin_of
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
    texts,
)
from orchard.trajectories.messages import Message

_BILLING = "x-anthropic-billing-header:"
"""Begins a block of Claude Code's system prompt that is no prompt, and differs from call to call."""
_SUBAGENT = "cc_is_subagent=true"
_BESIDE = ("tool_result", "tool_addition", "tool_removal")
"""Blocks that are no part of what a message says."""


def parse(body: bytes, headers: Mapping[str, str]) -> ModelRequest:
    """See ``Dialect.parse``."""
    known = json_object(body)
    sorting = Sorting(FIELDS)
    params = {**sorting.params(known), **_params(known, sorting)}
    reading = _Reading(sorting)
    billing = reading.system(known.get("system"))
    listed = objects(known.get("messages"), "messages")
    for message in listed:
        reading.take(message)
    if not listed or not reading.messages:
        raise InvalidArgument("messages must not be empty", field="messages")
    tools = tools_of(objects(known.get("tools") or [], "tools"), offered(listed), sorting)
    return ModelRequest(
        model=model_name(known.get("model")), messages=reading.messages, tools=tools,
        params={**params, **tool_choice(known.get("tool_choice"), bool(tools))},
        stream=flag(known.get("stream"), "stream"), origin=_origin(headers, billing), dropped=sorting.dropped,
    )  # fmt: skip


def _origin(headers: Mapping[str, str], billing: str) -> Origin:
    origin = origin_of(headers)
    return replace(origin, kind="subagent") if origin.kind is None and _SUBAGENT in billing else origin


def _params(known: Message, sorting: Sorting) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if known.get("stop_sequences"):
        params["stop"] = texts(known["stop_sequences"], "stop_sequences")
    for name, value in object_of(known.get("output_config")).items():
        form = object_of(value)
        if name == "format" and form.get("type") == "json_schema":
            schema = {"name": "answer", "schema": form.get("schema")}
            params["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            sorting.takes("output_config", name)
    return params


class _Reading:
    """The messages so far."""

    def __init__(self, sorting: Sorting) -> None:
        self.messages: list[Message] = []
        self._sorting = sorting

    def system(self, value: Any) -> str:
        """Add the system prompt; return the billing header in it."""
        if not value:
            return ""
        parts = self._parts(value, "system")
        billing = [text for part in parts if (text := str(part.get("text"))).startswith(_BILLING)]
        if billing:
            self._sorting.drop("system.x-anthropic-billing-header")
            parts = [part for part in parts if not str(part.get("text")).startswith(_BILLING)]
        if parts:
            self.messages.append({"role": "system", "content": content_of(parts)})
        return "".join(billing)

    def take(self, message: Message) -> None:
        """Add one message."""
        role, content = text_of(message.get("role"), "messages.role"), message.get("content")
        if role == "assistant":
            self.messages.append(self._answer(content))
        elif role not in ("user", "system"):
            raise InvalidArgument(f"messages have no role {role!r}", field="messages.role")
        elif isinstance(content, str):
            self.messages.append({"role": role, "content": content})
        else:
            blocks = objects(content, "messages.content")
            results = [block for block in blocks if block.get("type") == "tool_result"]
            self.messages += [self._result(block) for block in results]
            others = [block for block in blocks if block.get("type") not in _BESIDE]
            parts = self._parts(others, role)
            if parts or not blocks:
                self.messages.append({"role": role, "content": content_of(parts)})

    def _answer(self, content: Any) -> Message:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content, "content")
        texts, thoughts, calls = [""], [""], list[Message]()
        for block in blocks:
            kind = str(block.get("type"))
            if not self._sorting.takes("content", kind):
                continue
            if kind == "text":
                texts.append(text_of(block.get("text"), "content.text"))
            elif kind == "thinking":
                thoughts.append(self._thought(block))
            elif kind == "tool_use":
                arguments = json.dumps(block.get("input") if block.get("input") is not None else {})
                name = text_of(block.get("name"), "tool_use.name")
                calls.append(call_of(text_of(block.get("id"), "tool_use.id"), name, arguments))
            else:
                raise InvalidArgument(f"no model's answer holds a block of type {kind!r}", field="messages.content")
        message: Message = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
        if reasoning := "".join(thoughts):
            message["reasoning_content"] = reasoning
        return {**message, "tool_calls": calls} if calls else message

    def _thought(self, block: Message) -> str:
        text = text_of(block.get("thinking"), "content.thinking")
        if block.get("signature") == signature(text):
            return text
        self._sorting.drop("content.thinking")
        return ""

    def _result(self, block: Message) -> Message:
        if block.get("is_error"):
            self._sorting.drop("content.is_error")
        content = content_of(self._parts(block.get("content"), "tool_result"))
        return {"role": "tool", "tool_call_id": text_of(block.get("tool_use_id"), "tool_use_id"), "content": content}

    def _parts(self, value: Any, field: str) -> list[Message]:
        if value is None or isinstance(value, str):
            return [{"type": "text", "text": value or ""}]
        kinds = [(block, str(block.get("type"))) for block in objects(value, field)]
        return [_part(block, kind) for block, kind in kinds if self._sorting.takes("content", kind)]


def _part(block: Message, kind: str) -> Message:
    if kind == "text":
        return {"type": "text", "text": text_of(block.get("text"), "content.text")}
    if kind == "tool_reference":
        return {"type": "text", "text": text_of(block.get("tool_name"), "content.tool_name")}
    source = object_of(block.get("source"))
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _url(source)}}
    if kind != "document":
        raise InvalidArgument(f"a block of type {kind!r} has no place here", field="messages.content")
    if source.get("type") == "text":
        return {"type": "text", "text": text_of(source.get("data"), "content.source.data")}
    name = {"filename": block["title"]} if block.get("title") else {}
    return {"type": "file", "file": {"file_data": _url(source), **name}}


def _url(source: Message) -> str:
    if source.get("type") == "url":
        return text_of(source.get("url"), "content.source.url")
    if source.get("type") != "base64":
        kind = source.get("type")
        raise InvalidArgument(f"no source of type {kind!r} can be read here: send base64", field="content.source")
    data = text_of(source.get("data"), "content.source.data")
    return f"data:{text_of(source.get('media_type'), 'content.source.media_type')};base64,{data}"
