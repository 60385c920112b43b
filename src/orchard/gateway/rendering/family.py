"""What a family of models is, beside its chat template; each is a file here, and a line in ``load.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from orchard.gateway.errors import EngineRefused
from orchard.gateway.rendering.reading import Call, Syntax
from orchard.trajectories.messages import Message

Adapt = Callable[[list[Message], Sequence[Message]], tuple[list[Message], Sequence[Message]]]
"""Messages and tools as the family's template can write them."""


def no_head(tool: str | None) -> NoReturn:
    """Refuse to force a call."""
    raise EngineRefused("this model has no tool calls that could be forced; leave tool_choice out")


@dataclass(frozen=True)
class Family:
    """A family: how its answers are read, and what its template cannot write by itself."""

    name: str
    syntax: Syntax
    head: Callable[[str | None], str] = no_head
    """Text that begins a call of the tool of this name, or of any."""
    adapt: Adapt = lambda messages, tools: (messages, tools)
    template: str | None = None
    """For a model of the family that comes without one."""


def json_call(body: str, tools: Sequence[Message]) -> list[Call] | None:
    """Read ``{"name": …, "arguments": {…}}``."""
    try:
        facts = json.loads(body, parse_constant=_no_number)
    except ValueError:
        return None
    if not isinstance(facts, dict):
        return None
    known = cast("Message", facts)
    name, arguments = known.get("name"), known.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return [Call(name, json.dumps(arguments, ensure_ascii=False))]


def json_head(tool: str | None) -> str:
    """Begin such a call."""
    return '<tool_call>\n{"name": "' + ("" if tool is None else tool + '", "arguments": ')


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)


def function_of(tool: Message) -> Message:
    """Return the function that a tool in OpenAI's form describes."""
    function: Any = tool.get("function")
    return cast("Message", function) if isinstance(function, dict) else tool
