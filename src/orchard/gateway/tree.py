"""Where a call hangs in its session's tree: matched by the messages that it keeps of an earlier conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchard.trajectories.messages import Mark, Message, mark, rank_keys

_DIGEST = 16
"""Bytes of a message's digest; only digests stay in memory, for as long as the session is open."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One message of a conversation, as the tree knows it."""

    raw: bytes
    key: bytes
    reasoning: str


@dataclass(frozen=True)
class Placement:
    """How a prompt is recorded; the fields of ``CallRecord`` of the same names."""

    parent: str | None
    matched: str
    kept_messages: int
    edits: dict[int, Message]
    messages: list[Message]
    trail: list[_Step]
    """The prompt as ``CallTree.add`` takes it."""


@dataclass(frozen=True)
class _Known:
    """A recorded call, and the digests of its conversation: prompt and answer, message by message, as served."""

    id: str
    raw: bytes
    tools_hash: str | None

    def form(self, at: int) -> bytes:
        """Return the digest of message ``at``, -1 being the last."""
        at = at if at >= 0 else len(self.raw) // _DIGEST - 1
        return self.raw[at * _DIGEST : (at + 1) * _DIGEST]


@dataclass
class _Node:
    """The conversation up to one message. Children by what the next message says, then by its reasoning."""

    first: _Known | None = None
    """The call that brought this message, in its prompt or as its answer."""
    answers: list[_Known] = field(default_factory=list[_Known])
    """The calls whose conversation ends here."""
    children: dict[bytes, dict[str, _Node]] = field(default_factory=dict[bytes, "dict[str, _Node]"])

    def child(self, key: bytes, reasoning: str) -> _Node | None:
        """Return the next message's node; one that comes back without its reasoning is still the same."""
        variants = self.children.get(key)
        if not variants:
            return None
        found = variants.get(reasoning)
        return found if found is not None or reasoning else next(reversed(variants.values()))


def tools_digest(tools: Sequence[Message]) -> str | None:
    """Return a digest of the tools; None where there are none."""
    if not tools:
        return None
    return hashlib.blake2b(json.dumps(list(tools), sort_keys=True).encode(), digest_size=16).hexdigest()


class CallTree:
    """The durable calls of one session. Only what is on disk may become a parent, so no record ever lacks its own."""

    def __init__(self) -> None:
        self._root = _Node()
        self._marks: dict[bytes, Mark] = {}

    def place(self, messages: list[Message], tools_hash: str | None) -> Placement:
        """Find the recorded conversation of which ``messages`` keeps the most."""
        trail = self._trail(messages)
        node, kept = self._root, 0
        for step in trail:
            following = node.child(step.key, step.reasoning)
            if following is None:
                break
            node, kept = following, kept + 1
        if kept == 0 or node.first is None:
            return Placement(None, "root", 0, {}, messages, trail)
        parent = _owner(node, trail[kept - 1].raw)
        extends = node.answers and parent.tools_hash == tools_hash
        edits = {at: messages[at] for at in range(kept) if trail[at].raw != parent.form(at)}
        return Placement(parent.id, "extends" if extends else "forked", kept, edits, messages[kept:], trail)

    def add(self, call_id: str, placed: Placement, answer: Message | None, tools_hash: str | None) -> None:
        """Remember a call that is durable, with its answer if it has a whole one."""
        trail = placed.trail if answer is None else [*placed.trail, *self._trail([answer])]
        known = _Known(call_id, b"".join(step.raw for step in trail), tools_hash)
        node = self._root
        for step in trail:
            following = node.child(step.key, step.reasoning)
            if following is None:
                following = node.children.setdefault(step.key, {})[step.reasoning] = _Node(known)
            node = following
        if answer is not None:
            node.answers.append(known)

    def _trail(self, messages: list[Message]) -> list[_Step]:
        """Histories come back whole with each call: what was seen before in this very form is not looked into again."""
        raws = [_form(message) for message in messages]
        marks: list[Mark] = []
        for raw, message in zip(raws, messages, strict=True):
            if raw not in self._marks:
                self._marks[raw] = mark(message)
            marks.append(self._marks[raw])
        steps = zip(raws, rank_keys(marks), marks, strict=True)
        return [_Step(raw, key, one.reasoning) for raw, key, one in steps]


def _form(message: Message) -> bytes:
    return hashlib.blake2b(json.dumps(message).encode(), digest_size=_DIGEST).digest()


def _owner(node: _Node, last: bytes) -> _Known:
    """Of several calls that gave one answer, the one that gave it in this very form (ids differ), else the last."""
    if not node.answers:
        assert node.first is not None
        return node.first
    same = [known for known in node.answers if known.form(-1) == last]
    return (same or node.answers)[-1]
