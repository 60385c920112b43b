"""Tools of the messages form: deferred ones wait for a reference, those that Anthropic runs are dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from orchard.core.errors import InvalidArgument
from orchard.gateway.dialects.wire import Sorting, object_of, text_of
from orchard.trajectories.messages import Message

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass
class Offered:
    """What a conversation says of its tools beside ``tools``."""

    found: set[str] = field(default_factory=set[str])
    """Names of deferred tools that a search has named, or that were added."""
    removed: set[str] = field(default_factory=set[str])
    defined: dict[str, Message] = field(default_factory=dict[str, Message])
    """Tools that were added whole, by name."""

    def take(self, block: Message) -> None:
        """Take one block of a message, or of a tool's result."""
        kind, tool = block.get("type"), object_of(block.get("tool"))
        definition = object_of(tool.get("definition"))
        name = str(block.get("tool_name") or tool.get("name") or definition.get("name"))
        if kind == "tool_removal":
            self.removed.add(name)
        elif kind in ("tool_addition", "tool_reference"):
            self.found.add(name)
            self.removed.discard(name)
            if definition:
                self.defined[name] = definition


def offered(messages: list[Message]) -> Offered:
    """Return what the blocks of a conversation say of its tools, in their order."""
    known = Offered()
    for message in messages:
        for block in _blocks(message.get("content")):
            for part in [block, *_blocks(block.get("content"))]:
                known.take(part)
    return known


def _blocks(content: Any) -> list[Message]:
    listed = cast("list[Any]", content) if isinstance(content, list) else []
    return [object_of(block) for block in listed]


def tools_of(listed: list[Message], known: Offered, sorting: Sorting) -> list[Message]:
    """Return the tools in the common form."""
    tools: list[Message] = []
    for tool in [*listed, *known.defined.values()]:
        name = text_of(tool.get("name"), "tools.name")
        waits = name in known.removed or (bool(tool.get("defer_loading")) and name not in known.found)
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
