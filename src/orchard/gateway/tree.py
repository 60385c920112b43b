"""Where a call hangs in its session's tree: matched by the messages that it keeps of an earlier conversation.

Where the calls have token ids, the tree knows them too: the ids of the longest recorded conversation that a prompt
begins with are what it is built upon.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchard.gateway.engine import Prefix
from orchard.gateway.shared_ids import SharedIds
from orchard.trajectories.messages import Mark, Message, canonical_order, differences, mark, rank_keys

_DIGEST = 16
"""Bytes of a message's digest; only digests stay in memory, for as long as the session is open."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One message of a conversation, as the tree knows it."""

    raw: bytes
    key: bytes
    mark: Mark


@dataclass(frozen=True)
class _Trail:
    """A conversation. Results of parallel calls are looked up in the order of the calls, however they came."""

    raw: bytes
    """Digests in the order served."""
    order: tuple[int, ...]
    """Which message stands where in the order of look-up."""
    steps: list[_Step]
    """In that order."""


@dataclass(frozen=True)
class _Known:
    """A recorded call, and the digests of its conversation: prompt and answer, message by message, as served."""

    id: str
    raw: bytes
    order: tuple[int, ...]
    tools_hash: str | None
    ids: SharedIds | None = None
    """Of prompt and answer together; None where the engine gave none."""

    def form(self, at: int) -> bytes:
        """Return the digest of message ``at``, -1 being the last."""
        at = at if at >= 0 else len(self.raw) // _DIGEST - 1
        return self.raw[at * _DIGEST : (at + 1) * _DIGEST]


@dataclass(frozen=True)
class Placement:
    """How a prompt is recorded; the fields of ``CallRecord`` of the same names."""

    parent: str | None
    matched: str
    kept_messages: int
    edits: dict[int, Message]
    messages: list[Message]
    trail: _Trail
    """The prompt as ``CallTree.add`` takes it."""
    normalised: list[str] = field(default_factory=list[str])
    boundary: tuple[_Known, int] | None = None
    """The longest conversation with ids that the prompt begins with, and how many messages it has."""

    def prefix(self) -> Prefix | None:
        """Return that conversation's ids."""
        if self.boundary is None or self.boundary[0].ids is None:
            return None
        return Prefix(self.boundary[1], self.boundary[0].ids.whole())


@dataclass
class _Node:
    """The conversation up to one message. Children by what the next message says, then by its reasoning."""

    first: _Known | None = None
    """The call that brought this message, in its prompt or as its answer."""
    answers: list[_Known] = field(default_factory=list[_Known])
    """The calls whose conversation ends here."""
    children: dict[bytes, dict[str, _Node]] = field(default_factory=dict[bytes, "dict[str, _Node]"])
    by_ids: dict[bytes, list[tuple[Mark, _Node]]] = field(default_factory=dict[bytes, "list[tuple[Mark, _Node]]"])
    """Those children that call tools, by the ids of the calls."""

    def child(self, step: _Step) -> _Node | None:
        """Return the next message's node.

        One that comes back without its reasoning is still the same, and so is an answer of ours as a harness is known
        to rewrite it (``Mark.may_return_as``).
        """
        variants = self.children.get(step.key)
        if variants and (found := variants.get(step.mark.reasoning)) is not None:
            return found
        if variants and not step.mark.reasoning:
            return next(reversed(variants.values()))
        told = self.by_ids.get(step.mark.by_ids, ()) if step.mark.by_ids is not None else ()
        return next((node for own, node in told if node.answers and own.may_return_as(step.mark)), None)

    def grow(self, step: _Step, known: _Known) -> _Node:
        """Add and return the node of a next message that ``child`` does not find."""
        node = self.children.setdefault(step.key, {})[step.mark.reasoning] = _Node(known)
        if step.mark.by_ids is not None:
            self.by_ids.setdefault(step.mark.by_ids, []).append((step.mark, node))
        return node

    def answer(self, last: bytes, tools_hash: str | None) -> _Known | None:
        """Return the call with ids that gave this answer to the same tools."""
        return _closest([one for one in self.answers if one.ids is not None and one.tools_hash == tools_hash], last)


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
        self._calls: dict[str, _Known] = {}

    def place(self, messages: list[Message], tools_hash: str | None) -> Placement:
        """Find the recorded conversation of which ``messages`` keeps the most."""
        trail = self._trail(messages)
        node, kept, boundary = self._root, 0, None
        for step in trail.steps:
            following = node.child(step)
            if following is None:
                break
            node, kept = following, kept + 1
            if (answered := node.answer(step.raw, tools_hash)) is not None:
                boundary = answered, kept
        if kept == 0 or node.first is None:
            return Placement(None, "root", 0, {}, messages, trail)
        parent = _closest(node.answers, trail.steps[kept - 1].raw) or node.first
        extends = bool(node.answers) and parent.tools_hash == tools_hash
        edits = {at: messages[at] for at in range(kept) if _at(trail.raw, at) != parent.form(at)}
        return Placement(
            parent.id, "extends" if extends else "forked", kept, edits, messages[kept:], trail,
            self._normalised(parent, trail, kept) if edits else [], boundary,
        )  # fmt: skip

    def kept_ids(self, placed: Placement, prompt: Sequence[int], spliced: int) -> int:
        """Return how many ids a prompt has in common with the beginning of its parent's conversation.

        Args:
            placed: where it is.
            prompt: its ids.
            spliced: how many of them are those of ``placed.prefix()``.
        """
        parent = self._calls[placed.parent].ids if placed.parent else None
        if parent is None:
            return 0
        whole = placed.boundary is not None and placed.boundary[0].ids is parent and spliced == len(parent)
        return spliced if whole else parent.common(prompt)

    def add(
        self,
        call_id: str,
        placed: Placement,
        answer: Message | None,
        tools_hash: str | None,
        ids: tuple[int, Sequence[int]] | None = None,
    ) -> None:
        """Remember a call that is durable.

        Args:
            call_id: its id.
            placed: where ``place`` put it.
            answer: its answer, if it has a whole one.
            tools_hash: of its tools.
            ids: how many its prompt keeps of its parent's (``kept_ids``), and the rest of the prompt's and answer's.
        """
        trail = placed.trail if answer is None else self._with_answer(placed.trail, answer)
        parent = self._calls[placed.parent].ids if placed.parent else None
        shared = None if ids is None else SharedIds(parent, *ids)
        known = self._calls[call_id] = _Known(call_id, trail.raw, trail.order, tools_hash, shared)
        node = self._root
        for step in trail.steps:
            node = node.child(step) or node.grow(step, known)
        if answer is not None:
            node.answers.append(known)

    def _normalised(self, parent: _Known, trail: _Trail, kept: int) -> list[str]:
        """Return what was left aside for the kept messages to be equal."""
        found: set[str] = set()
        for at in range(kept):
            recorded, given = parent.form(parent.order[at]), trail.steps[at].raw
            if recorded != given:
                found |= differences(self._marks[recorded], self._marks[given])
        if parent.order[:kept] != trail.order[:kept]:
            found.add("result_order")
        return sorted(found)

    def _trail(self, messages: Sequence[Message]) -> _Trail:
        """Histories come back whole with each call: what was seen before in this very form is not looked into again."""
        raws = [_form(message) for message in messages]
        marks: list[Mark] = []
        for raw, message in zip(raws, messages, strict=True):
            if raw not in self._marks:
                self._marks[raw] = mark(message)
            marks.append(self._marks[raw])
        steps = [_Step(raw, key, one) for raw, key, one in zip(raws, rank_keys(marks), marks, strict=True)]
        order = tuple(canonical_order(marks))
        return _Trail(b"".join(raws), order, [steps[at] for at in order])

    def _with_answer(self, trail: _Trail, answer: Message) -> _Trail:
        """An answer answers no tool call, so that it has the same key in any conversation."""
        own = self._trail([answer])
        return _Trail(trail.raw + own.raw, (*trail.order, len(trail.order)), [*trail.steps, *own.steps])


def _form(message: Message) -> bytes:
    return hashlib.blake2b(json.dumps(message).encode(), digest_size=_DIGEST).digest()


def _at(raw: bytes, at: int) -> bytes:
    return raw[at * _DIGEST : (at + 1) * _DIGEST]


def _closest(answers: Sequence[_Known], last: bytes) -> _Known | None:
    """Of several calls that gave one answer, the one that gave it in this very form (ids differ), else the last."""
    same = [known for known in answers if known.form(-1) == last]
    return (same or answers or [None])[-1]
