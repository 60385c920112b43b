"""What a call is for: the agent's work, a sub-agent's, or one beside it (title, summary, compaction …).

A harness's own word counts most. Without one, what real harnesses were seen to do decides: side calls carry no tools,
or end in a message that asks for a summary; a sub-agent begins a conversation of its own with what it was told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.tree import Placement
from orchard.trajectories import WORK
from orchard.trajectories.messages import Message

PURPOSES = (*WORK, "title", "summary", "compaction", "side")
_INSTRUCTIONS = ("system", "developer")
_HEAD = 4000
"""Only so many characters of a message's beginning are looked at: behind them stands what it is about."""
_LEAST_TOLD = 12
"""A task that a parent gives to a sub-agent is longer than that."""
_SUMMARY_HEAD = 200
_TITLE = re.compile(r"\btitle\b", re.IGNORECASE)
_COMPACTION = re.compile(
    r"compact|condens|checkpoint|hand-?(off|over)|context (window|limit|summar)|continu\w+ (the )?(conversation|work)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"summar", re.IGNORECASE)
_MIDWAY = re.compile(
    r"CRITICAL: Respond with TEXT ONLY"  # Claude Code 2.1
    r"|run out of context\. Create a handoff summary"  # Kimi Code 2.1
    r"|summar\w+[^.\n]{0,80}\b(conversation|session|context|history|so far)\b"
    r"|\bcompact(ion|ing)?\b[^.\n]{0,80}\b(conversation|session|context|history)\b",
    re.IGNORECASE,
)
"""Asks for a summary of the conversation in which it stands, tools and all."""


@dataclass(frozen=True)
class _Start:
    """How an agent's conversations begin."""

    instructions: str
    tools_hash: str | None
    agent: str | None
    """Its name, where the harness says one."""


@dataclass
class Purposes:
    """What a session knows of its calls' purposes. Whatever arrives is told at once, also while others run."""

    _main: _Start | None = None
    _tools: bool = False
    _known: dict[str, str] = field(default_factory=dict[str, str])
    _told: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Texts in the tool calls of an answer, until its results are served: what sub-agents are told."""
    _summaries: list[str] = field(default_factory=list[str])
    """How the answers to compactions begin: what goes on from one holds it."""

    def of(self, asked: ModelRequest, placed: Placement, tools_hash: str | None) -> str:
        """Return the purpose of a call that arrives."""
        found = self._purpose(asked, placed, tools_hash)
        if found == "agent" and self._main is None:
            self._main = _start(asked, tools_hash)
        self._tools = self._tools or tools_hash is not None
        if placed.parent is not None and placed.matched == "extends" and found in WORK:
            self._told.pop(placed.parent, None)
        return found

    def note(self, call_id: str, purpose: str, answer: Message | None) -> None:
        """Remember a call that is durable."""
        self._known[call_id] = purpose
        if purpose == "compaction" and answer is not None and (summary := _text(answer).strip()[:_SUMMARY_HEAD]):
            self._summaries.append(summary)
        calls = cast("list[Message]", (answer or {}).get("tool_calls") or [])
        if calls and purpose in WORK:
            self._told[call_id] = [text for call in calls for text in _texts_of(call) if len(text) >= _LEAST_TOLD]

    def _purpose(self, asked: ModelRequest, placed: Placement, tools_hash: str | None) -> str:
        origin = asked.origin
        if origin.kind in PURPOSES and origin.kind not in WORK:
            return str(origin.kind)
        if tools_hash is None and (beside := self._beside(asked.messages)) is not None:
            return beside
        goes_on = any(message.get("role") not in _INSTRUCTIONS for message in _kept(asked, placed))
        if goes_on and _asks_midway(placed.messages):
            return "compaction"
        if origin.parent is not None or origin.kind == "subagent":
            return "subagent"
        if goes_on and placed.parent is not None:
            before = self._known.get(placed.parent, "agent")
            return before if before in WORK else "agent"
        return self._of_a_beginning(asked, tools_hash)

    def _beside(self, messages: list[Message]) -> str | None:
        """Without tools: in a session that uses some it is a side call; before any, only if its words say so."""
        words = _instructions(messages)[:_HEAD] + "\n" + _last_of_user(messages)[:_HEAD]
        if _TITLE.search(words) and (self._tools or _is_short(messages)):
            return "title"
        if not self._tools:
            return None
        if _SUMMARY.search(words) or _COMPACTION.search(words):
            return "compaction" if _COMPACTION.search(words) else "summary"
        return "side"

    def _of_a_beginning(self, asked: ModelRequest, tools_hash: str | None) -> str:
        if self._main is None or self._main.agent == asked.origin.agent is not None:
            return "agent"
        said = "\n".join(_text(message) for message in asked.messages)
        if any(summary in said for summary in self._summaries):
            return "agent"
        if any(text in said for texts in self._told.values() for text in texts):
            return "subagent"
        return "agent" if self._main == _start(asked, tools_hash) else "subagent"


def _start(asked: ModelRequest, tools_hash: str | None) -> _Start:
    return _Start(_instructions(asked.messages), tools_hash, asked.origin.agent)


def _kept(asked: ModelRequest, placed: Placement) -> list[Message]:
    return asked.messages[: placed.kept_messages]


def _asks_midway(messages: list[Message]) -> bool:
    """Whether what is new ends in a user's message that wants the conversation summed up."""
    if not messages or messages[-1].get("role") != "user":
        return False
    return bool(_MIDWAY.search(_text(messages[-1])[:_HEAD]))


def _is_short(messages: list[Message]) -> bool:
    return len([message for message in messages if message.get("role") not in _INSTRUCTIONS]) <= 2


def _instructions(messages: list[Message]) -> str:
    return "\n".join(_text(message) for message in messages if message.get("role") in _INSTRUCTIONS)


def _last_of_user(messages: list[Message]) -> str:
    return next((_text(message) for message in reversed(messages) if message.get("role") == "user"), "")


def _text(message: Mapping[str, Any]) -> str:
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = (cast("Message", part).get("text") for part in cast("list[Any]", content) if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _texts_of(call: Message) -> Iterable[str]:
    """Return the texts among a tool call's arguments."""
    arguments: Any = cast("Message", call.get("function") or {}).get("arguments")
    try:
        facts = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return ()
    return _strings(facts)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        items = cast("list[Any]", value)
    return [text for item in items for text in _strings(item)]
