"""Qwen3-Coder and Qwen3.5: a call names its function and each parameter in tags; values stand there as plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from orchard.gateway.rendering.family import Family, function_of
from orchard.gateway.rendering.reading import Call, Syntax
from orchard.trajectories.messages import Message

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)\s*</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*<parameter=|\s*\Z)", re.DOTALL)
"""A value may hold the closing tag: it ends where another parameter or nothing follows."""
_TRUTH = {"true": True, "false": False}


def _read(body: str, tools: Sequence[Message]) -> list[Call] | None:
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return None
    name, rest = function[1], function[2]
    types = _types(name, tools)
    arguments: dict[str, Any] = {}
    while rest.strip():
        parameter = _PARAMETER.match(rest)
        if parameter is None:
            return None
        arguments[parameter[1]] = _value(parameter[2], types.get(parameter[1]))
        rest = rest[parameter.end() :]
    return [Call(name, json.dumps(arguments, ensure_ascii=False))]


def _types(name: str, tools: Sequence[Message]) -> dict[str, Any]:
    """Return the declared type of each parameter of a tool."""
    for function in map(function_of, tools):
        if function.get("name") == name:
            schema = cast("Message", function.get("parameters") or {})
            properties = cast("dict[str, Any]", schema.get("properties") or {})
            return {key: cast("Message", one).get("type") for key, one in properties.items() if isinstance(one, dict)}
    return {}


def _value(text: str, kind: Any) -> Any:
    """Return a value as its schema types it; text where that says nothing else, or where it is none of the kind."""
    kinds: list[Any] = cast("list[Any]", kind) if isinstance(kind, list) else [kind]
    if kind is None or "string" in kinds:
        return text
    if text.strip().lower() in ("null", "none"):
        return None
    if "boolean" in kinds and text.strip().lower() in _TRUTH:
        return _TRUTH[text.strip().lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _head(tool: str | None) -> str:
    return "<tool_call>\n<function=" + ("" if tool is None else f"{tool}>\n")


QWEN3_CODER = Family("qwen3-coder", Syntax(read=_read), head=_head)
