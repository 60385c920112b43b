"""Reading what an agent program wrote of itself: lines of JSON, and tool calls joined with their results.

It was written in a sandbox, so nothing of its form is taken for granted: what is not as it should be is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from orchard.core.text import carried
from orchard.harness.protocol import ToolEvent

EVENT_CHARS = 10_000
"""Most characters of one output that a tool event keeps: a half from the head, a half from the tail."""


def json_lines(*paths: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of files that hold one a line; a line that is none, as one cut by a kill, is left out."""
    for path in paths:
        for line in path.read_bytes().splitlines():
            try:
                facts = json.loads(line)
            except ValueError:
                continue
            if isinstance(facts, dict):
                yield facts


def inner(facts: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the object at ``path`` of nested objects; an empty one where there is none."""
    found: Any = facts
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` with those of ``more`` added or in their place, object by object."""
    result = dict(settings)
    for key, value in more.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none where it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def joined_text(value: Any) -> str:
    """Return a text, or the texts of a list of parts, as one."""
    if isinstance(value, str):
        return value
    return "\n".join(part["text"] for part in objects(value) if isinstance(part.get("text"), str))


def clipped(text: str) -> str:
    """Return ``text``, or its head and tail with a note of what lies between."""
    if len(text) <= EVENT_CHARS:
        return text
    half = EVENT_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - EVENT_CHARS} characters left out here …]\n{text[-half:]}"


def arguments_of(value: Any) -> dict[str, Any]:
    """Return a tool call's arguments, given as an object or as JSON text; text that is none becomes ``input``."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {"input": value}
    return dict(value) if isinstance(value, dict) else {"input": value}


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two times in RFC 3339, or in milliseconds; 0 where one is neither."""
    begun, ended = _seconds(start), _seconds(end)
    return 0.0 if begun is None or ended is None else round(max(0.0, ended - begun), 4)


def _seconds(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    return value / 1000 if isinstance(value, int | float) else None


@dataclass
class ToolLog:
    """Tool calls in the order in which they were asked for, each joined with its result by its id."""

    _events: dict[str, ToolEvent] = field(default_factory=dict[str, ToolEvent])
    _asked_at: dict[str, Any] = field(default_factory=dict[str, Any])

    def asked(
        self, tool_call_id: Any, name: Any, arguments: Any, *, answer: Any = None, at: Any = None, key: Any = None
    ) -> None:
        """Note a call; the same again changes nothing.

        Args:
            tool_call_id: as the model gave it; it may give another call the same.
            name: of the tool.
            arguments: of the call.
            answer: id of the model's answer that holds it.
            at: when.
            key: what the program itself knows the call by; the other methods ask for it. Default: ``tool_call_id``.
        """
        key = tool_call_id if key is None else key
        if not isinstance(tool_call_id, str) or not isinstance(key, str) or key in self._events:
            return
        self._asked_at[key] = at
        self._events[key] = ToolEvent(
            call_id=answer if isinstance(answer, str) else None, name=str(name), arguments=carried(arguments),
            output="", exit_code=None, seconds=0.0, error="no result", tool_call_id=tool_call_id,
        )  # fmt: skip

    def came_of(self, keys: Iterable[str], answer: Any) -> None:
        """Name the answer that calls noted earlier came of."""
        for one in keys:
            if one in self._events and isinstance(answer, str):
                self._events[one] = replace(self._events[one], call_id=answer)

    def answered(
        self, key: Any, output: str, *, exit_code: Any = None, error: str | None = None, at: Any = None
    ) -> None:
        """Join the result of a call that was noted; another's is left out."""
        if isinstance(key, str) and (event := self._events.get(key)):
            self._events[key] = replace(
                event, output=clipped(carried(output)), exit_code=exit_code if isinstance(exit_code, int) else None,
                error=error, seconds=seconds_between(self._asked_at[key], at),
            )  # fmt: skip

    @property
    def events(self) -> tuple[ToolEvent, ...]:
        """All calls so far; one without a result has the error ``no result``."""
        return tuple(self._events.values())
