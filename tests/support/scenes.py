"""Scripted models for what befalls a conversation: sub-agents at once, a compaction, a context that is full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from orchard.gateway import ContextOverflow, Engine, EngineRequest, Final
from orchard.gateway.engine import Part
from orchard.harness import check as toy
from orchard.rollout.toy_model import ToyModel
from orchard.sandbox.toolnames import TOOLS
from orchard.trajectories import Usage

Message = Mapping[str, Any]
Answer = Callable[[Sequence[Message], Sequence[Message]], dict[str, Any]]
FULL = "context"
SUBTASK = "This is the share of"
SHARES = ("Ada", "Bob")
WAITING = "I wait for"
BOTH = "Both shares are done."
SUMMARY = "The project holds greet.sh, whose greeting lacks a letter."
SUMMED_UP = f"<analysis>It is short.</analysis>\n<summary>{SUMMARY}</summary>"
KEPT = (SUMMARY, *(f"{SUBTASK} {name}." for name in SHARES))
"""What a purpose is told by; golden samples keep it."""
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Scene:
    """A scene as one harness comes to it."""

    answer: Answer
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the harness."""
    events: Mapping[int, str | int] = field(default_factory=dict[int, "str | int"])
    """See ``Staged``."""

    def engine(self) -> Staged:
        """Return the model of one rollout."""
        return Staged(ToyModel(self.answer), self.events)


class Staged:
    """Answers as ``inner``; some of the requests, counted from 0, meet something else. Sub-agents wait for each other.

    Args:
        inner: what answers.
        events: request -> ``FULL`` (it does not fit the model), or how many tokens its prompt is said to have had.
    """

    name, policy_version = "scene", None

    def __init__(self, inner: Engine, events: Mapping[int, str | int]) -> None:
        self._inner, self._events, self._gate = inner, dict(events), Gate()
        self.count = 0

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        event = self._events.get(self.count)
        self.count += 1
        await self._gate.pass_by(request.messages)
        if event == FULL:
            raise ContextOverflow(9_000, 8_192)
        async with aclosing(self._inner.complete(request)) as parts:
            async for part in parts:
                if isinstance(part, Final):
                    self._gate.answered(request.messages)
                    used = Usage(prompt_tokens=event, completion_tokens=10) if isinstance(event, int) else part.usage
                    part = replace(part, usage=used)
                yield part

    async def close(self) -> None: ...


class Gate:
    """Lets the first requests of both sub-agents go on once both have come: they are there at once, or it fails.

    A parent that waits for them is not answered until both have ended.
    """

    def __init__(self) -> None:
        self._here: dict[str, asyncio.Event] = {name: asyncio.Event() for name in SHARES}
        self._done: dict[str, asyncio.Event] = {name: asyncio.Event() for name in SHARES}

    async def pass_by(self, messages: Sequence[Message]) -> None:
        name = share_of(messages)
        if name is not None:
            self._here[name].set()
        events = self._here if name is not None else self._done if waits(messages) else {}
        async with asyncio.timeout(_WAIT_SECONDS):
            for event in events.values():
                await event.wait()

    def answered(self, messages: Sequence[Message]) -> None:
        name = share_of(messages)
        if name is not None and toy.acted(messages):
            self._done[name].set()


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


def waits(messages: Sequence[Message]) -> bool:
    """Whether a parent has said that it waits."""
    return any(one.get("role") == "assistant" and text_of(one).startswith(WAITING) for one in messages)


Wait = Callable[[Sequence[Message], str], dict[str, Any]]
"""Returns the call by which a parent waits for the sub-agent of a name."""


def two_helpers(
    spawn: str,
    arguments: Callable[[str], dict[str, Any]],
    wait: Wait | None = None,
    before: str = "",
    *,
    heard: bool = True,
) -> Answer:
    """Return a model that has two sub-agents do the toy at once: Ada mends it, Bob runs the test.

    Args:
        spawn: the tool that starts one.
        arguments: of its call, for what a sub-agent is told.
        wait: how it waits for them, where their end is not awaited anyway.
        before: a command that comes first.
        heard: whether the parent hears of their end.
    """

    def answer(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
        if not tools:
            return {"content": toy.SIDE}
        if (name := share_of(messages)) is not None:
            return _do_share(name, messages, tools)
        if before and toy.acted(messages) == 0:
            return {"content": "I prepare.", "calls": [toy.shell_call(tools, f"cd {toy.WORKDIR} && {before}")]}
        if toy.acted(messages) == bool(before):
            calls = [{"name": spawn, "arguments": arguments(f"{SUBTASK} {name}.")} for name in SHARES]
            return {"content": "I ask two helpers.", "calls": calls}
        told = "\n".join(text_of(message) for message in messages)
        missing = [name for name in SHARES if f"{name} is done." not in told]
        if not missing or (not heard and waits(messages)):
            return {"content": BOTH}
        call = wait(messages, missing[0]) if wait else toy.shell_call(tools, "sleep 1")
        return {"content": f"{WAITING} {missing[0]}.", "calls": [call]}

    return answer


def _do_share(name: str, messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    if toy.acted(messages):
        return {"content": f"{name} is done."}
    command = f"cd {toy.WORKDIR} && echo '{toy.RIGHT}' > {toy.FILE}" if name == "Ada" else "sleep 1; echo Bob"
    return {"content": f"{name} begins.", "calls": [toy.shell_call(tools, command)]}


def _wait_agent(messages: Sequence[Message], name: str) -> dict[str, Any]:
    ids = [json.loads(text_of(one))["agent_id"] for one in messages if '"agent_id"' in text_of(one)[:20]]
    target = ids[SHARES.index(name)]
    return {"name": "multi_agent_v1__wait_agent", "arguments": {"targets": [target], "timeout_ms": 30_000}}


def _yield(messages: Sequence[Message], name: str) -> dict[str, Any]:
    return {"name": "sessions_yield", "arguments": {}}


def summing_up(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """Mend the toy, and sum up whatever has to be compacted."""
    asked = text_of(messages[-1])
    if not tools or asked.startswith(("CRITICAL: Respond with TEXT ONLY", "You are about to run out of context.")):
        return {"content": SUMMED_UP}
    return toy.answer(messages, tools)


def summed_up_in_sections(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """Sum up in the sections that OpenClaw asks for; it makes others of their headings."""
    return {"content": f"## Decisions\n{SUMMARY}"} if not tools else toy.answer(messages, tools)


def summing_up_once(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """Mend the toy, and end as soon as it was summed up."""
    if tools and any(SUMMARY in text_of(one) for one in messages if one.get("role") == "user"):
        return {"content": toy.SAYS[3]}
    return summing_up(messages, tools)


_PI = f"{TOOLS}/pi/node_modules/@earendil-works/pi-coding-agent/examples/extensions"
_PI_AGENT = (
    r"mkdir -p .pi/agents && printf -- '---\nname: helper\ndescription: helps\n---\nHelp.\n' > .pi/agents/helper.md"
)
_DESCRIBED = {"description": "a share"}
_OWN_TEST = {"agent": {"verify_on_stop": False}}
"""Hermes Agent knows the toy's test for none."""
SUBAGENTS: Mapping[str, Scene] = {
    "claude-code": Scene(two_helpers("Agent", lambda told: {**_DESCRIBED, "prompt": told})),
    "codex": Scene(two_helpers("multi_agent_v1__spawn_agent", lambda told: {"message": told}, _wait_agent)),
    "hermes-agent": Scene(
        two_helpers("delegate_task", lambda told: {"goal": told}, heard=False),
        {"settings": _OWN_TEST, "toolsets": ["terminal", "file", "delegation"]},
    ),
    "kimi-code": Scene(two_helpers("Agent", lambda told: {**_DESCRIBED, "prompt": told})),
    "opencode": Scene(
        two_helpers("task", lambda told: {**_DESCRIBED, "prompt": told, "subagent_type": "general"})
    ),
    "openhands": Scene(two_helpers("task", lambda told: {**_DESCRIBED, "prompt": told}), {"subagents": 2}),
    "pi": Scene(
        two_helpers(
            "subagent",
            lambda told: {"agent": "helper", "task": told, "agentScope": "project", "confirmProjectAgents": False},
            before=_PI_AGENT,
        ),
        {"args": ["-e", f"{_PI}/subagent/index.ts"]},  # it has none of its own, but an example of an extension
    ),
    "zeroclaw": Scene(
        two_helpers("spawn_subagent", lambda told: {"prompt": told}),
        {"settings": {"runtime_profiles": {"orchard": {"parallel_tools": True}}}},
    ),
}  # fmt: skip
"""Harnesses whose sub-agents work at the same time."""
GATEWAY = Scene(two_helpers("sessions_spawn", lambda told: {"task": told}, _yield), {"tool_search": False})
"""OpenClaw with its own gateway (``tests.support.openclaw_gateway``)."""
COMPACTIONS: Mapping[str, Scene] = {
    "claude-code": Scene(summing_up, events={2: FULL}),
    "codex": Scene(summing_up, {"context": 200_000, "compact_at": 150_000}, {1: 160_000}),
    "hermes-agent": Scene(
        summing_up,
        {"settings": {**_OWN_TEST, "compression": {"protect_first_n": 1, "protect_last_n": 3}}},
        {2: 130_000},
    ),
    "kimi-code": Scene(summing_up, {"context": 131_072}, {1: 128_000}),
    "openclaw": Scene(
        summed_up_in_sections,
        {"append_only": True, "settings": {"agents": {"defaults": {"compaction": {"keepRecentTokens": 1}}}}},
        {2: FULL},
    ),
    "opencode": Scene(summing_up, {"context": 100_000, "output": 4_096}, {1: 99_000}),
    "openhands": Scene(summing_up_once, {"condense_at": 7}),
    "pi": Scene(summing_up, {"settings": {"compaction": {"keepRecentTokens": 1}}}, {1: 130_000}),
}
"""Harnesses that compact, and what makes them do it."""
STAYS_FULL = Scene(toy.answer, events=dict.fromkeys(range(2, 99), FULL))
"""From the third request on, nothing fits the model."""
