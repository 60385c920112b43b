"""An answer as the blocks that responses and messages are made of: reasoning, text, one for each tool call.

Streamed, at most one block is open, they come in this order, and what would break it is held to the end: so a history
made of them reads back as the answer. Calls are closed at the end only, when the answer is durable: nothing acts on one
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from orchard.gateway.engine import Final
from orchard.trajectories.messages import Message, reasoning_of

_RANKS = {"reasoning": 0, "text": 1, "call": 2}


@dataclass
class Block:
    """One block of an answer."""

    kind: Literal["reasoning", "text", "call"]
    at: int
    """Its place in the answer, from 0."""
    text: str = ""
    """So far; a call's is its arguments."""
    call_id: str = ""
    name: str = ""


class BlockWriter(Protocol):
    """Writes the events of a dialect's blocks."""

    def opened(self, block: Block) -> bytes:
        """Return the events that open a block."""
        ...

    def piece(self, block: Block, text: str) -> bytes:
        """Return the events of more text, already part of the block."""
        ...

    def closed(self, block: Block) -> bytes:
        """Return the events that close a block."""
        ...


def blocks_of(message: Message, response_id: str) -> list[Block]:
    """Return the blocks of a whole answer; one without anything has an empty text."""
    blocks: list[Block] = []
    if reasoning := reasoning_of(message):
        blocks.append(Block("reasoning", 0, reasoning))
    if text := str(message.get("content") or ""):
        blocks.append(Block("text", len(blocks), text))
    for number, call in enumerate(_calls(message)):
        blocks.append(_call_block(call, len(blocks), f"call_{_tail(response_id)}_{number}"))
    return blocks or [Block("text", 0)]


class BlockStream:
    """Turns deltas into blocks for one reader.

    Args:
        writer: writes them in the dialect's words.
        response_id: names calls to which the engine gave no id.
    """

    def __init__(self, writer: BlockWriter, response_id: str) -> None:
        self._writer, self._response_id = writer, response_id
        self._open: Block | None = None
        self._count = 0
        self._sent = {"reasoning": "", "text": ""}
        self._live: str | None = None
        """Id of the first call, whose arguments go out as they come."""

    def delta(self, delta: Message) -> bytes:
        """Return the events of one delta."""
        texts = (("reasoning", reasoning_of(delta)), ("text", delta.get("content")))
        events = [self._say(kind, text) for kind, text in texts if isinstance(text, str) and text]
        events += [self._call(piece) for piece in _calls(delta)]
        return b"".join(events)

    def end(self, final: Final) -> bytes:
        """Return the events of what has not gone out yet, and close the last block."""
        events: list[bytes] = []
        for block in self._rest(final.message):
            events += [self._start(block), self._writer.piece(block, block.text) if block.text else b""]
        return b"".join([*events, self._close()])

    def _rest(self, message: Message) -> Iterator[Block]:
        gone = self._live is not None
        for block in blocks_of(message, self._response_id):
            if block.kind == "call":
                if not gone:
                    yield block
                gone = False
            elif block.text.startswith(self._sent[block.kind]):
                block.text = block.text[len(self._sent[block.kind]) :]
                if block.text or not self._count:
                    yield block

    def _say(self, kind: str, text: str) -> bytes:
        now = self._open
        if now is not None and _RANKS[kind] < _RANKS[now.kind]:
            return b""  # out of order: it goes out at the end
        events = b""
        if now is None or now.kind != kind:
            now = Block(cast("Any", kind), 0)
            events = self._start(now)
        now.text += text
        self._sent[kind] += text
        return events + self._writer.piece(now, text)

    def _call(self, piece: Message) -> bytes:
        block = _call_block(piece, 0, "")
        if piece.get("index", 0) != 0:
            return b""
        if self._live is None:
            if not block.call_id or not block.name:
                return b""
            self._live = block.call_id
            events = self._start(block)
            return events + (self._writer.piece(block, block.text) if block.text else b"")
        if self._open is None or not block.text or block.call_id not in ("", self._live):
            return b""
        self._open.text += block.text
        return self._writer.piece(self._open, block.text)

    def _start(self, block: Block) -> bytes:
        events = self._close()
        block.at, self._count, self._open = self._count, self._count + 1, block
        return events + self._writer.opened(block)

    def _close(self) -> bytes:
        block, self._open = self._open, None
        return b"" if block is None else self._writer.closed(block)


def _calls(message: Message) -> list[Message]:
    return cast("list[Message]", message.get("tool_calls") or [])


def _function(call: Message) -> Message:
    return cast("Message", call.get("function") or {})


def _call_block(call: Message, at: int, spare_id: str) -> Block:
    function = _function(call)
    arguments, name = function.get("arguments") or "", str(function.get("name") or "")
    return Block("call", at, str(arguments), str(call.get("id") or spare_id), name)


def _tail(response_id: str) -> str:
    return response_id.rpartition("-")[2]
