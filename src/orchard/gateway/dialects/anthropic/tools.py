"""Tools of the messages form: deferred ones wait for a reference, those that Anthropic runs are dropped."""

from __future__ import annotations

from typing import Any, cast

from orchard.core.errors import InvalidArgument
from orchard.gateway.dialects.wire import Sorting, object_of, text_of
from orchard.trajectories.messages import Message

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def referenced(messages: list[Message]) -> set[str]:
    """Return the names of the deferred tools that results of a search for tools have named."""
    blocks = [block for message in messages for block in _blocks(message.get("content"))]
    inner = [part for block in blocks for part in [block, *_blocks(block.get("content"))]]
    return {str(part.get("tool_name")) for part in inner if part.get("type") == "tool_reference"}


def _blocks(content: Any) -> list[Message]:
    listed = cast("list[Any]", content) if isinstance(content, list) else []
    return [object_of(block) for block in listed]


def tools_of(listed: list[Message], found: set[str], sorting: Sorting) -> list[Message]:
    """Return the tools in the common form."""
    tools: list[Message] = []
    for tool in listed:
        name = text_of(tool.get("name"), "tools.name")
        waits = bool(tool.get("defer_loading")) and name not in found
        if not sorting.takes("tools", "deferred" if waits else str(tool.get("type") or "custom"), name):
            continue
        function: Message = {"name": name}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        if tool.get("input_schema") is not None:
            function["parameters"] = tool["input_schema"]
        tools.append({"type": "function", "function": function})
    return tools


def tool_choice(value: Any, any_tools: bool) -> dict[str, Any]:
    """Return ``tool_choice`` and ``parallel_tool_calls`` in chat's words; without tools no engine takes them."""
    if value is None:
        return {}
    choice = object_of(value)
    kind = choice.get("type")
    params: dict[str, Any] = {}
    if kind == "tool":
        name = text_of(choice.get("name"), "tool_choice.name")
        params["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in _CHOICES:
        params["tool_choice"] = _CHOICES[kind]
    else:
        raise InvalidArgument(f"tool_choice has no type {kind!r}", field="tool_choice")
    if choice.get("disable_parallel_tool_use"):
        params["parallel_tool_calls"] = False
    return params if any_tools else {}
