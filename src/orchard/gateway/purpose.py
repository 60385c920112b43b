"""What a call is for: the agent's work, a sub-agent's, or one beside it (title, summary, compaction …).

What is beside the work is left out of training, so only strong evidence makes a call that: what a harness says in
headers, the fixed words with which a known harness begins such a call, where it puts them, or no tools in a session
that uses some and nothing of the agent's conversation. What a task or an observation speaks of decides nothing.
A sub-agent begins a conversation of its own with what it was told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.tree import Placement
from orchard.trajectories import WORK
from orchard.trajectories.messages import Message

PURPOSES = (*WORK, "title", "summary", "compaction", "side")
_INSTRUCTIONS = ("system", "developer")
_HEAD = 400
"""Characters in which a fixed phrase has room."""
_LEAST_TOLD = 12
"""A task that a parent gives to a sub-agent is longer than that."""
_SUMMARY_HEAD = 200
_INSTRUCTED: Mapping[str, str] = {
    # opencode 1.18
    "You are a title generator. You output ONLY a thread title. Nothing else.": "title",
    "Summarize what was done in this conversation. Write like a pull request description.": "summary",
    "You are a context summarization agent. You are given a conversation between a user and an agent.": "compaction",
    # Hermes Agent 0.19
    "Generate a short, descriptive title (3-7 words) for a conversation that starts with the following exchange.": (
        "title"
    ),
    # OpenHands SDK 1.58
    "You are a helpful assistant that generates concise, descriptive titles for conversations with OpenHands.": "title",
    "You are maintaining a context-aware state summary for an interactive agent.": "compaction",
    # pi 1.6 and 0.73, OpenClaw 2026.9
    "You are a context summarization assistant. Your task is to read a conversation between a user and an AI": (
        "compaction"
    ),
}
"""Begin the instructions of a conversation without tools."""
_ALONE: Mapping[str, str] = {
    # Hermes Agent 0.19
    "You are a summarization agent creating a context checkpoint. Treat the conversation turns below as source": (
        "compaction"
    ),
}
"""Begin the one message of a conversation without tools or instructions, in a session that uses tools."""
_MIDWAY = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",  # Claude Code 2.1
    "You are about to run out of context. Create a handoff summary for the",  # Kimi Code 2.1
)
"""Begin the last message of a user behind the conversation that is to be summed up, tools and all."""


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
    _tooled: set[str | None] = field(default_factory=set[str | None])
    """Agents that have used tools, by the names in their headers; None where they say none."""
    _known: dict[str, str] = field(default_factory=dict[str, str])
    _told: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Texts in the tool calls of an answer, until its results are served: what sub-agents are told."""
    _summaries: list[str] = field(default_factory=list[str])
    """How the answers to compactions begin: what goes on from one holds it."""

    def of(self, asked: ModelRequest, placed: Placement, tools_hash: str | None) -> str:
        """Return the purpose of a call that arrives."""
        found = self._purpose(asked, placed, tools_hash)
        if found == "agent" and (self._main is None or (self._main.tools_hash is None and tools_hash is not None)):
            self._main = _start(asked, tools_hash)
        if tools_hash is not None:
            self._tooled.add(asked.origin.agent)
        if placed.parent is not None and placed.matched == "extends" and found in WORK:
            self._told.pop(placed.parent, None)
        return found

    def note(self, call_id: str, purpose: str, answer: Message | None) -> None:
        """Remember a call that is durable."""
        self._known[call_id] = purpose
        if purpose == "compaction" and answer is not None and (summary := _text(answer).strip()[:_SUMMARY_HEAD]):
            self._summaries.append(summary)
            self._told.clear()  # a call that was under way is among what goes on, not told to anybody
        calls = cast("list[Message]", (answer or {}).get("tool_calls") or [])
        if calls and purpose in WORK:
            self._told[call_id] = [text for call in calls for text in _texts_of(call) if len(text) >= _LEAST_TOLD]

    def _purpose(self, asked: ModelRequest, placed: Placement, tools_hash: str | None) -> str:
        origin = asked.origin
        if origin.kind in PURPOSES and origin.kind not in WORK:
            return str(origin.kind)
        if (fixed := self._by_fixed_words(asked.messages, tools_hash)) is not None:
            return fixed
        if tools_hash is None and self._is_beside(asked, placed):
            before = self._known.get(placed.parent or "", "side") if _goes_on(asked, placed) else "side"
            return "side" if before in WORK else before
        if origin.parent is not None or origin.kind == "subagent":
            return "subagent"
        if placed.parent is not None and _goes_on(asked, placed):
            before = self._known.get(placed.parent, "agent")
            return before if before in WORK else "agent"
        return self._of_a_beginning(asked, tools_hash)

    def _by_fixed_words(self, messages: list[Message], tools_hash: str | None) -> str | None:
        """Return what the words say with which a known harness begins a call beside the work."""
        last: Message = messages[-1] if messages else {}
        if tools_hash is not None or self._tooled:
            behind = any(message.get("role") == "assistant" for message in messages[:-1])
            if behind and last.get("role") == "user" and _begins(last, _MIDWAY):
                return "compaction"
        if tools_hash is not None:
            return None
        for message in messages:
            if message.get("role") in _INSTRUCTIONS and (found := _begins(message, _INSTRUCTED)):
                return _INSTRUCTED[found]
        alone = len(messages) == 1 and self._tooled and last.get("role") == "user"
        return _ALONE[found] if alone and (found := _begins(last, _ALONE)) else None

    def _is_beside(self, asked: ModelRequest, placed: Placement) -> bool:
        """Whether a call without tools is none of the agent's: its session uses some, and it keeps none of its answers.

        An agent whose tools are taken away for its last turn still goes on from what it said. One that asks the same
        again, without them, works too; and so does a sub-agent, told by headers, that never had any.
        """
        agent = asked.origin.agent
        if not self._tooled or (asked.origin.parent is not None and agent is not None and agent not in self._tooled):
            return False
        kept = _kept(asked, placed)
        if not _goes_on(asked, placed) or placed.parent is None:
            return True
        again = not placed.messages or any(message.get("role") == "assistant" for message in kept)
        own = self._main is not None and self._main.instructions == _instructions(asked.messages)
        return not (again and (own or self._known.get(placed.parent, "agent") in WORK))

    def _of_a_beginning(self, asked: ModelRequest, tools_hash: str | None) -> str:
        if self._main is None or not self._tooled or self._main.agent == asked.origin.agent is not None:
            return "agent"
        said = "\n".join(_text(message) for message in asked.messages)
        if any(summary in said for summary in self._summaries):
            return "agent"
        task = "\n".join(_text(message) for message in takewhile(_is_given, asked.messages))
        if any(text in task for texts in self._told.values() for text in texts):
            return "subagent"
        return "agent" if self._main == _start(asked, tools_hash) else "subagent"


def _start(asked: ModelRequest, tools_hash: str | None) -> _Start:
    return _Start(_instructions(asked.messages), tools_hash, asked.origin.agent)


def _kept(asked: ModelRequest, placed: Placement) -> list[Message]:
    return asked.messages[: placed.kept_messages]


def _goes_on(asked: ModelRequest, placed: Placement) -> bool:
    """Whether more than instructions is kept of an earlier conversation."""
    return any(message.get("role") not in _INSTRUCTIONS for message in _kept(asked, placed))


def _is_given(message: Message) -> bool:
    """Whether a message is from before an agent's first turn, if none before it is from later."""
    return message.get("role") in (*_INSTRUCTIONS, "user")


def _begins(message: Message, phrases: Iterable[str]) -> str | None:
    """Return the phrase with which the message, or a part of it, begins."""
    texts = [" ".join(text[:_HEAD].split()) for text in _texts(message)]
    return next((phrase for phrase in phrases for text in texts if text.startswith(phrase)), None)


def _instructions(messages: list[Message]) -> str:
    return "\n".join(_text(message) for message in messages if message.get("role") in _INSTRUCTIONS)


def _text(message: Mapping[str, Any]) -> str:
    return "\n".join(_texts(message))


def _texts(message: Mapping[str, Any]) -> list[str]:
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = (cast("Message", part).get("text") for part in cast("list[Any]", content) if isinstance(part, dict))
        return [part for part in parts if isinstance(part, str)]
    return [content] if isinstance(content, str) else []


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
