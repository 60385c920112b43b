"""Models for what befalls a conversation: an overflow, a compaction, sub-agents at once. Each mends the toy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from orchard.gateway import ContextOverflow, Engine, EngineRequest, Final
from orchard.gateway.engine import Part
from orchard.harness import check as toy

Message = Mapping[str, Any]
CONTEXT = 200_000
"""What a harness is told of the model's context; prompts of the toy are far below, and it may believe it ever after."""


class Overflowing:
    """Answers as ``inner``, but says once that the context is full: as soon as a conversation holds two results."""

    policy_version = None

    def __init__(self, inner: Engine) -> None:
        self._inner, self.name, self.full = inner, inner.name, False

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        results = sum(message.get("role") == "tool" for message in request.messages)
        if results >= 2 and not self.full:
            self.full = True
            raise ContextOverflow(CONTEXT + 1, CONTEXT)
        async with aclosing(self._inner.complete(request)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        await self._inner.close()


class Heavy:
    """Answers as ``inner``, but counts the prompt of the second call as ``tokens``, at which a harness compacts."""

    policy_version = None

    def __init__(self, inner: Engine, tokens: int) -> None:
        self._inner, self.name, self._tokens, self._calls = inner, inner.name, tokens, 0

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        self._calls += 1
        heavy = self._calls == 2
        async with aclosing(self._inner.complete(request)) as parts:
            async for part in parts:
                if heavy and isinstance(part, Final):
                    part = replace(part, usage=part.usage.model_copy(update={"prompt_tokens": self._tokens}))
                yield part

    async def close(self) -> None:
        await self._inner.close()


SUBTASKS = ("SUBTASK one: say in a word what greet.sh is for.", "SUBTASK two: say in a word what test.sh is for.")
SUBANSWER = "A greeting."
_STARTERS = ("spawn_agent", "agent", "task", "delegate_task", "sessions_spawn")
_TOLD = ("prompt", "message", "goal", "task", "instruction")
_WAIT = 25.0


class Delegating:
    """Starts two sub-agents at once, waits until both have asked, then mends the toy.

    A sub-agent's call is answered once the other one's has come, so that both are under way at the same time.
    """

    policy_version = None
    name = "script"

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self._asked: set[str] = set()
        self.both = asyncio.Event()

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        told = [task for task in SUBTASKS if _is_subagent(request.messages, task)]
        if told:
            self._asked.add(told[0])
            if len(self._asked) == len(SUBTASKS):
                self.both.set()
        if told or _delegated(request.messages):
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAIT):
                    await self.both.wait()
        async with aclosing(self._inner.complete(request)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        await self._inner.close()


def delegating(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """The steps of the toy's model, after one that starts two sub-agents; and what a sub-agent answers."""
    if any(_is_subagent(messages, task) for task in SUBTASKS):
        return {"content": SUBANSWER}
    starter = starter_of(tools)
    if starter is None or not tools:
        return toy.answer(messages, tools)
    if not _delegated(messages):
        return {"content": "I ask two others.", "calls": [_start(starter, task) for task in SUBTASKS]}
    begun = next(at for at, message in enumerate(messages) if _starts(message))
    rest = [message for at, message in enumerate(messages) if at != begun]
    return toy.answer(rest, tools)


def starter_of(tools: Sequence[Message]) -> Message | None:
    """The tool that starts a sub-agent."""
    by_name = {tool["function"]["name"].rpartition("__")[2].lower(): tool["function"] for tool in tools}
    return next((by_name[name] for name in _STARTERS if name in by_name), None)


def _start(function: Message, task: str) -> dict[str, Any]:
    schema = function["parameters"]
    properties: Message = schema.get("properties") or {}
    told = next(name for name in _TOLD if name in properties)
    arguments: dict[str, Any] = {told: task}
    for name in schema.get("required") or ():
        arguments.setdefault(name, toy.filler(properties.get(name) or {}))
    return {"name": function["name"], "arguments": arguments}


def _starts(message: Message) -> bool:
    return message.get("role") == "assistant" and SUBTASKS[0] in str(message.get("tool_calls"))


def _delegated(messages: Sequence[Message]) -> bool:
    return any(_starts(message) for message in messages)


def _is_subagent(messages: Sequence[Message], task: str) -> bool:
    """Whether a user's message tells this task, rather than an answer of ours that gives it to somebody."""
    return any(message.get("role") == "user" and task in str(message.get("content")) for message in messages)
