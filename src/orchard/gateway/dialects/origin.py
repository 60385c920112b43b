"""What harnesses say of themselves in headers, whichever dialect they speak: which agent, whose child, what for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from orchard.core.text import carried
from orchard.gateway.dialects.base import Origin

_AGENTS = (
    "thread-id", "x-claude-code-agent-id", "x-claude-code-session-id", "x-session-id", "x-litellm-session-id",
    "session-id", "session_id", "x-session-affinity",
)  # fmt: skip
"""Codex, Claude Code (a sub-agent, then the main one), opencode, OpenHands, pi, OpenClaw; the first that is there."""
_WINDOW = re.compile(r":\d+$")
"""What OpenClaw puts behind its ``session_id``: how often the session was compacted. The agent stays the same."""
_PARENTS = ("x-codex-parent-thread-id", "x-parent-session-id")
_KINDS = {"turn": None, "compact": "compaction", "collab_spawn": "subagent"}
"""Codex's words that are not the record's."""
_LONGEST = 200


def origin_of(headers: Mapping[str, str]) -> Origin:
    """Return what the headers say; what they do not say is None."""
    agent, parent = _first(headers, _AGENTS), _first(headers, _PARENTS)
    if agent is not None and "session_id" in headers:
        agent = _WINDOW.sub("", agent)
    if "x-claude-code-agent-id" in headers:
        parent = _first(headers, ("x-claude-code-session-id",))
    kind = _turn_kind(headers.get("x-codex-turn-metadata", ""))
    if kind is None and "x-openai-subagent" in headers:
        kind = _word(headers["x-openai-subagent"])
    return Origin(agent, parent, kind or ("subagent" if parent else None))


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    found = (carried(headers[name])[:_LONGEST] for name in names if headers.get(name))
    return next(found, None)


def _turn_kind(metadata: str) -> str | None:
    facts: Any = None
    with suppress(ValueError, RecursionError):  # whose header this is, is not ours to judge
        facts = json.loads(metadata)
    kind = cast("dict[str, Any]", facts).get("request_kind") if isinstance(facts, dict) else None
    return _word(kind) if isinstance(kind, str) else None


def _word(value: str) -> str | None:
    return _KINDS.get(value, carried(value)[:_LONGEST] or None)
