"""Writing an answer in OpenAI's responses form, whole or as events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

from orchard.core.errors import OrchardError
from orchard.core.text import carried
from orchard.gateway.dialects.blocks import Block, BlockStream, blocks_of
from orchard.gateway.dialects.failures import openai_error, overflowed
from orchard.gateway.dialects.responses.tools import ToolName
from orchard.gateway.dialects.wire import event, object_of
from orchard.gateway.engine import Delta, Final
from orchard.gateway.errors import ContextOverflow
from orchard.trajectories.messages import Message

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Items:
    """Writes blocks as output items.

    Args:
        response_id: their ids are made of it.
        names: of the tools, as the request had them.
    """

    def __init__(self, response_id: str, names: Mapping[str, ToolName]) -> None:
        self._tail, self._names = response_id.rpartition("-")[2], names

    def item(self, block: Block, *, done: bool = True) -> Message:
        """Return the item of a block, empty as long as it is not done."""
        head: Message = {"id": self.item_id(block)}
        status = {"status": "completed" if done else "in_progress"}
        if block.kind == "reasoning":
            summary = [summary_part(block.text)] if done else []
            return {**head, "type": "reasoning", "summary": summary, "encrypted_content": None}
        if block.kind == "text":
            content = [text_part(block.text)] if done else []
            return {**head, "type": "message", "role": "assistant", "content": content, **status}
        tool = self.tool(block)
        head |= {"call_id": block.call_id, "name": tool.name}
        if tool.namespace:
            head["namespace"] = tool.namespace
        if tool.custom:
            return {**head, "type": "custom_tool_call", "input": custom_input(block.text) if done else "", **status}
        return {**head, "type": "function_call", "arguments": block.text if done else "", **status}

    def item_id(self, block: Block) -> str:
        """Return the id of a block's item."""
        prefix = {"reasoning": "rs", "text": "msg"}.get(block.kind) or ("ctc" if self.tool(block).custom else "fc")
        return f"{prefix}_{self._tail}_{block.at}"

    def tool(self, block: Block) -> ToolName:
        """Return how a block's call is written back; a tool that the model made up keeps its name."""
        return self._names.get(block.name) or ToolName(block.name)


def response(head: Message, status: str, **facts: Any) -> Message:
    """Return a response object."""
    return {
        **head, "object": "response", "status": status, "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "output": [], "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto",
        "tools": [], "top_p": None, "usage": None, **facts,
    }  # fmt: skip


def head_of(response_id: str, model: str) -> Message:
    """Return what each form of a response begins with."""
    return {"id": response_id, "created_at": int(time.time()), "model": model}


def ended(head: Message, items: list[Message], final: Final) -> Message:
    """Return the response object of a whole answer."""
    usage = final.usage
    facts: Message = {
        "output": items,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    reason = _INCOMPLETE.get(final.finish_reason)
    if reason is None:
        return response(head, "completed", **facts)
    return response(head, "incomplete", incomplete_details={"reason": reason}, **facts)


def answer(response_id: str, model: str, names: Mapping[str, ToolName], final: Final) -> Message:
    """Return the body of a whole answer."""
    items = Items(response_id, names)
    output = [items.item(block) for block in blocks_of(final.message, response_id)]
    return ended(head_of(response_id, model), output, final)


class ResponseEvents:
    """Events of one streamed answer. See ``EventStream`` and ``BlockWriter``."""

    def __init__(self, response_id: str, model: str, names: Mapping[str, ToolName]) -> None:
        self._head, self._items = head_of(response_id, model), Items(response_id, names)
        self._blocks = BlockStream(self, response_id)
        self._output: list[Message] = []
        self._number = 0

    def begin(self) -> bytes:
        """Return the events of a response that has begun."""
        running = response(self._head, "in_progress")
        return self._event("response.created", response=running) + self._event("response.in_progress", response=running)

    def delta(self, delta: Delta) -> bytes:
        """Return the events of one delta."""
        return self._blocks.delta(delta.delta)

    def alive(self) -> bytes:
        """Return an event, since Codex takes a stream for idle that has only comments."""
        return self._event("response.in_progress", response=response(self._head, "in_progress"))

    def end(self, final: Final) -> bytes:
        """Return the events that end it."""
        rest = self._blocks.end(final)
        whole = ended(self._head, self._output, final)
        return rest + self._event(f"response.{whole['status']}", response=whole)

    def failed(self, error: OrchardError) -> bytes:
        """Return the events of a final error; Codex reads the last one, others the first.

        For Codex any code but these two is worth a retry.
        """
        facts = object_of(openai_error(error).get("error"))
        code = ContextOverflow.code if overflowed(error) else "invalid_prompt"
        words = {"code": code, "message": facts.get("message") or carried(str(error))}
        first = self._event("error", **words, param=None, error={**facts, **words})
        return first + self._event("response.failed", response=response(self._head, "failed", error=words))

    def opened(self, block: Block) -> bytes:
        """See ``BlockWriter``."""
        events = self._event("response.output_item.added", **_at(block), item=self._items.item(block, done=False))
        if block.kind == "reasoning":
            events += self._part("response.reasoning_summary_part.added", block, summary_index=0, part=summary_part(""))
        elif block.kind == "text":
            events += self._part("response.content_part.added", block, content_index=0, part=text_part(""))
        return events

    def piece(self, block: Block, text: str) -> bytes:
        """See ``BlockWriter``; the input of a custom tool can only be read as a whole."""
        if block.kind == "reasoning":
            return self._part("response.reasoning_summary_text.delta", block, summary_index=0, delta=text)
        if block.kind == "text":
            return self._part("response.output_text.delta", block, content_index=0, delta=text, logprobs=[])
        if self._items.tool(block).custom:
            return b""
        return self._part("response.function_call_arguments.delta", block, delta=text)

    def closed(self, block: Block) -> bytes:
        """See ``BlockWriter``."""
        item = self._items.item(block)
        self._output.append(item)
        return self._said(block, item) + self._event("response.output_item.done", **_at(block), item=item)

    def _said(self, block: Block, item: Message) -> bytes:
        if block.kind == "reasoning":
            part = item["summary"][0]
            events = self._part("response.reasoning_summary_text.done", block, summary_index=0, text=block.text)
            return events + self._part("response.reasoning_summary_part.done", block, summary_index=0, part=part)
        if block.kind == "text":
            part = item["content"][0]
            events = self._part("response.output_text.done", block, content_index=0, text=block.text, logprobs=[])
            return events + self._part("response.content_part.done", block, content_index=0, part=part)
        if item["type"] == "custom_tool_call":
            name = "response.custom_tool_call_input"
            events = self._part(f"{name}.delta", block, delta=item["input"])
            return events + self._part(f"{name}.done", block, input=item["input"])
        return self._part(
            "response.function_call_arguments.done", block, name=item["name"], arguments=item["arguments"]
        )

    def _part(self, kind: str, block: Block, **facts: Any) -> bytes:
        return self._event(kind, item_id=self._items.item_id(block), **_at(block), **facts)

    def _event(self, kind: str, **facts: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **facts}, kind)


def summary_part(text: str) -> Message:
    """Return the part of a reasoning item that holds its text."""
    return {"type": "summary_text", "text": text}


def text_part(text: str) -> Message:
    """Return the part of a message item that holds its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def custom_input(arguments: str) -> str:
    """Return the text that a custom tool gets; what is not in the agreed form goes to it as it is."""
    try:
        facts: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = cast("Message", facts).get("input") if isinstance(facts, dict) else None
    return text if isinstance(text, str) else arguments


def _at(block: Block) -> dict[str, int]:
    return {"output_index": block.at}
