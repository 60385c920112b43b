"""What formats of whole conversations share: which branches they take, and the call that gave each message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from orchard.trajectories.messages import Message
from orchard.trajectories.records import CallRecord
from orchard.trajectories.trajectory import Branch, Trajectory

BESIDE = frozenset({"title", "summary", "compaction", "side"})
"""Purposes of calls that are not the agent's work, nor a sub-agent's."""


def conversations(trajectories: Iterable[Trajectory], *, side_calls: bool) -> Iterator[tuple[Trajectory, Branch]]:
    """Yield each branch with its trajectory; those that end in a call beside the work only with ``side_calls``."""
    for found in trajectories:
        for branch in found.branches():
            if side_calls or branch.leaf.purpose not in BESIDE:
                yield found, branch


def answers(found: Trajectory, branch: Branch) -> dict[int, CallRecord]:
    """Return the calls of a branch by the position of their answers in its messages."""
    return {len(found.prompt(call.id)): call for call in branch.calls}


def text_of(content: Any) -> str:
    """Return a message's content as text: parts of text are joined, others are told as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content)
    parts = cast("list[Any]", content)
    return "\n".join(_text(part) for part in parts)


def _text(part: Any) -> str:
    if isinstance(part, dict):
        text = cast("Message", part).get("text")
        return text if isinstance(text, str) else json.dumps(part)
    return str(part)


def tool_calls(message: Message) -> list[tuple[str, str, str]]:
    """Return id, name and arguments (JSON text) of each tool call of an assistant message."""
    calls = cast("list[Message]", message.get("tool_calls") or [])
    functions = [cast("Message", call.get("function") or {}) for call in calls]
    return [
        (str(call.get("id") or ""), str(function.get("name") or ""), str(function.get("arguments") or "{}"))
        for call, function in zip(calls, functions, strict=True)
    ]
