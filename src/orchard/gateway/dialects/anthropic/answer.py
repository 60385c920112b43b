"""Writing an answer in Anthropic's messages form, whole or as events."""

from __future__ import annotations

from typing import Any, cast

from orchard.core.errors import OrchardError
from orchard.gateway.dialects.anthropic.signature import signature
from orchard.gateway.dialects.blocks import Block, BlockStream, blocks_of
from orchard.gateway.dialects.failures import anthropic_error
from orchard.gateway.dialects.wire import event, loads
from orchard.gateway.engine import Delta, Final
from orchard.trajectories import Usage
from orchard.trajectories.messages import Message

_STOPS = {"length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}


def answer(response_id: str, model: str, final: Final) -> Message:
    """Return the body of a whole answer."""
    content = [_block(block) for block in blocks_of(final.message, response_id)]
    return {**_message(response_id, model), "content": content, **_stopped(final), "usage": _usage(final.usage)}


class MessageEvents:
    """Events of one streamed answer. See ``EventStream`` and ``BlockWriter``."""

    def __init__(self, response_id: str, model: str) -> None:
        self._message = _message(response_id, model)
        self._blocks = BlockStream(self, response_id)

    def begin(self) -> bytes:
        """Return the event of a message that has begun; the last one tells its usage."""
        message: Message = {**self._message, "content": [], "usage": _usage(Usage())}
        message |= {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message)

    def delta(self, delta: Delta) -> bytes:
        """Return the events of one delta."""
        return self._blocks.delta(delta.delta)

    def alive(self) -> bytes:
        """Return an event that says nothing."""
        return _event("ping")

    def end(self, final: Final) -> bytes:
        """Return the events that end it."""
        rest = self._blocks.end(final)
        return rest + _event("message_delta", delta=_stopped(final), usage=_usage(final.usage)) + _event("message_stop")

    def failed(self, error: OrchardError) -> bytes:
        """Return the event of a final error."""
        return event(anthropic_error(error), "error")

    def opened(self, block: Block) -> bytes:
        """See ``BlockWriter``."""
        return _event("content_block_start", index=block.at, content_block=_block(block, done=False))

    def piece(self, block: Block, text: str) -> bytes:
        """See ``BlockWriter``."""
        deltas: dict[str, Message] = {
            "reasoning": {"type": "thinking_delta", "thinking": text},
            "text": {"type": "text_delta", "text": text},
            "call": {"type": "input_json_delta", "partial_json": text},
        }
        return _event("content_block_delta", index=block.at, delta=deltas[block.kind])

    def closed(self, block: Block) -> bytes:
        """See ``BlockWriter``; a thinking block is signed when it is whole."""
        events = b""
        if block.kind == "reasoning":
            signed = {"type": "signature_delta", "signature": signature(block.text)}
            events = _event("content_block_delta", index=block.at, delta=signed)
        return events + _event("content_block_stop", index=block.at)


def _message(response_id: str, model: str) -> Message:
    return {"id": response_id, "type": "message", "role": "assistant", "model": model}


def _block(block: Block, *, done: bool = True) -> Message:
    text = block.text if done else ""
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": signature(text) if done else ""}
    if block.kind == "text":
        return {"type": "text", "text": text}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": _input(text) if done else {}}


def _input(arguments: str) -> Message:
    """Return a call's arguments; the form has no place for what is no object."""
    try:
        facts: Any = loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return cast("Message", facts) if isinstance(facts, dict) else {}


def _stopped(final: Final) -> Message:
    reason = _STOPS.get(final.finish_reason, "end_turn")
    if reason == "end_turn" and final.message.get("tool_calls"):
        reason = "tool_use"
    if reason == "end_turn" and final.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": final.stop_string}
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(usage: Usage) -> Message:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(kind: str, **facts: Any) -> bytes:
    return event({"type": kind, **facts}, kind)
