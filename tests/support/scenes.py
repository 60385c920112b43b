"""Scripted models for what befalls a conversation: sub-agents at once, a compaction, a context that is full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchard.gateway import ContextOverflow, EngineRequest, Final, ScriptEngine
from orchard.gateway.engine import Part
from orchard.harness import check as toy
from orchard.trajectories import Usage

Message = Mapping[str, Any]
FULL = "context"
SUBTASK = "This is the share of"
SHARES = ("Ada", "Bob")
BOTH = "Both shares are done."
SUMMARY = "The project holds greet.sh, whose greeting lacks a letter."
_WAIT_SECONDS = 60.0


class Scene:
    """Answers by ``answer``; some of the requests, counted from 0, meet something else.

    Args:
        answer: as ``ScriptEngine`` takes it.
        events: request -> ``FULL`` (it does not fit the model), or how many tokens its prompt is said to have had.
        when: each request waits for this first.
    """

    name, policy_version = "scene", None

    def __init__(
        self, answer: Callable[..., Any], events: Mapping[int, str | int] | None = None, when: Gate | None = None
    ) -> None:
        self._script, self._events, self._gate = ScriptEngine(answer), dict(events or {}), when
        self.count = 0

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        event = self._events.get(self.count)
        self.count += 1
        if self._gate is not None:
            await self._gate.pass_by(request.messages)
        if event == FULL:
            raise ContextOverflow(9_000, 8_192)
        async for part in self._script.complete(request):
            if isinstance(part, Final) and isinstance(event, int):
                part = replace(part, usage=Usage(prompt_tokens=event, completion_tokens=10))
            yield part

    async def close(self) -> None: ...


class Gate:
    """Lets the first requests of both sub-agents go on once both have come: they are there at once, or it fails."""

    def __init__(self) -> None:
        self._here: dict[str, asyncio.Event] = {name: asyncio.Event() for name in SHARES}

    async def pass_by(self, messages: Sequence[Message]) -> None:
        name = share_of(messages)
        if name is not None:
            self._here[name].set()
            async with asyncio.timeout(_WAIT_SECONDS):
                for event in self._here.values():
                    await event.wait()


def text_of(message: Message) -> str:
    """Return the texts of a message as one."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def share_of(messages: Sequence[Message]) -> str | None:
    """Return whose share a conversation is; None for the parent's."""
    told = "\n".join(text_of(message) for message in messages if message.get("role") == "user")
    if toy.INSTRUCTION in told:
        return None
    return next((name for name in SHARES if f"{SUBTASK} {name}" in told), None)


def two_helpers(spawn: str, arguments: Callable[[str], dict[str, Any]], wait: str = "") -> Callable[..., Any]:
    """Return a model that has two sub-agents do the toy at once: Ada mends it, Bob runs the test.

    Args:
        spawn: the tool that starts one.
        arguments: of its call, for what a sub-agent is told.
        wait: a tool that waits for them, where their end is not awaited anyway.
    """

    def answer(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
        if not tools:
            return {"content": toy.SIDE}
        name = share_of(messages)
        if name is not None:
            command = f"cd {toy.WORKDIR} && echo '{toy.RIGHT}' > {toy.FILE}" if name == "Ada" else "sleep 1; echo Bob"
            if toy.acted(messages):
                return {"content": f"{name} is done."}
            return {"content": f"{name} begins.", "calls": [toy.shell_call(tools, command)]}
        if toy.acted(messages) == 0:
            calls = [{"name": spawn, "arguments": arguments(f"{SUBTASK} {name}.")} for name in SHARES]
            return {"content": "I ask two helpers.", "calls": calls}
        heard = "\n".join(text_of(message) for message in messages)
        missing = [name for name in SHARES if f"{name} is done." not in heard]
        if not missing:
            return {"content": BOTH}
        if wait:
            ids = [json.loads(text_of(one))["agent_id"] for one in messages if '"agent_id"' in text_of(one)[:20]]
            target = ids[SHARES.index(missing[0])]
            waiting = {"name": wait, "arguments": {"targets": [target], "timeout_ms": 30_000}}
            return {"content": f"I wait for {missing[0]}.", "calls": [waiting]}
        return {"content": f"I wait for {missing[0]}.", "calls": [toy.shell_call(tools, "sleep 1")]}

    return answer


def summing_up(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """Mend the toy, and sum up whatever has to be compacted."""
    if not tools or "CRITICAL: Respond with TEXT ONLY" in text_of(messages[-1]):
        return {"content": f"<analysis>It is short.</analysis>\n<summary>{SUMMARY}</summary>"}
    return toy.answer(messages, tools)
