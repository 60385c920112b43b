"""Tools of the responses form: namespaces flattened, custom tools as functions, hosted ones dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchard.core.errors import InvalidArgument
from orchard.gateway.dialects.wire import Sorting, object_of, objects, text_of
from orchard.trajectories.messages import Message


@dataclass(frozen=True)
class ToolName:
    """How a call of a tool is written back."""

    name: str
    namespace: str | None = None
    custom: bool = False


def flat_name(namespace: Any, name: str) -> str:
    """Return the one name that a function of a namespace has in the common form."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def tools_of(listed: list[Message], sorting: Sorting) -> tuple[list[Message], dict[str, ToolName]]:
    """Return the tools in the common form, and by their names there how calls are written back.

    Raises:
        InvalidArgument: two of them have one name.
    """
    tools: list[Message] = []
    names: dict[str, ToolName] = {}
    for tool, namespace in _flattened(listed, sorting):
        known = ToolName(text_of(tool.get("name"), "tools.name"), namespace, tool.get("type") == "custom")
        flat = flat_name(namespace, known.name)
        if flat in names:
            raise InvalidArgument(f"two tools have the name {flat!r}", field="tools")
        names[flat] = known
        tools.append(_function(flat, tool))
    return tools, names


def _flattened(listed: list[Message], sorting: Sorting) -> list[tuple[Message, str | None]]:
    flat: list[tuple[Message, str | None]] = []
    for tool in listed:
        kind = str(tool.get("type"))
        if not sorting.takes("tools", kind):
            continue
        if kind == "namespace":
            name = text_of(tool.get("name"), "tools.name")
            inner = objects(tool.get("tools") or [], "tools.namespace")
            flat += [(one, name) for one in inner if sorting.takes("tools", str(one.get("type")))]
        else:
            flat.append((tool, None))
    return flat


def _function(name: str, tool: Message) -> Message:
    function: Message = {"name": name}
    if tool.get("type") == "custom":
        grammar = object_of(tool.get("format"))
        text = str(tool.get("description") or "")
        if grammar.get("definition"):
            text += f"\n\nThe input follows this {grammar.get('syntax')} grammar:\n{grammar['definition']}"
        parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        return {"type": "function", "function": {**function, "description": text, "parameters": parameters}}
    for key in ("description", "parameters", "strict"):
        if tool.get(key) is not None:
            function[key] = tool[key]
    return {"type": "function", "function": function}


def tool_choice(known: Mapping[str, Any], any_tools: bool, sorting: Sorting) -> dict[str, Any]:
    """Return ``tool_choice`` and ``parallel_tool_calls`` in chat's words; without tools no engine takes them."""
    params: dict[str, Any] = {}
    choice = known.get("tool_choice")
    if choice is not None:
        params["tool_choice"] = _choice(choice, sorting)
    if known.get("parallel_tool_calls") is not None:
        params["parallel_tool_calls"] = known["parallel_tool_calls"]
    return params if any_tools else {}


def _choice(choice: Any, sorting: Sorting) -> Any:
    if isinstance(choice, str):
        return choice
    facts = object_of(choice)
    kind = facts.get("type")
    if kind == "allowed_tools":
        sorting.drop("tool_choice.allowed_tools")
        return facts.get("mode") or "auto"
    if kind not in ("function", "custom"):
        raise InvalidArgument(f"tool_choice names {kind!r}, which is no tool here", field="tool_choice")
    name = flat_name(facts.get("namespace"), text_of(facts.get("name"), "tool_choice.name"))
    return {"type": "function", "function": {"name": name}}
