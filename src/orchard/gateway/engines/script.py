"""An engine that plays a script: for demos, tests and benches, without a model.

A step is an assistant message, or a short form of one: text; ``{"bash": COMMAND}``; ``{"content": TEXT, "calls":
[{"name": NAME, "arguments": {…}}]}``. Or the whole script is a function of the messages and tools.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from orchard.core.errors import InvalidArgument
from orchard.gateway.engine import Delta, EngineRequest, Final, as_delta
from orchard.gateway.errors import ScriptEnded
from orchard.trajectories import Usage
from orchard.trajectories.messages import Message

Step = str | Mapping[str, Any]
Answer = Callable[[Sequence[Message], Sequence[Message]], Step]
"""Takes the prompt's messages and the tools."""


def bash_step(command: str, content: str = "") -> Message:
    """Return a step that calls the tool ``bash`` with ``command``."""
    return {"content": content, "calls": [{"name": "bash", "arguments": {"command": command}}]}


class ScriptEngine:
    """Answers turn ``n`` of each session with step ``n``.

    Args:
        script: the steps, or a function that gives one.
        latency: seconds before an answer begins.
        at_end: what a turn beyond the last step gets: ``error`` (``ScriptEnded``, final) or ``repeat`` (the last step).
        name: word for the record.
        policy_version: as recorded.
    """

    def __init__(
        self,
        script: Sequence[Step] | Answer,
        *,
        latency: float = 0.0,
        at_end: Literal["error", "repeat"] = "error",
        name: str = "script",
        policy_version: str | None = None,
    ) -> None:
        self._script = script if callable(script) else [as_message(step) for step in script]
        self._latency, self._at_end = latency, at_end
        self.name, self.policy_version = name, policy_version

    @classmethod
    def load(cls, path: Path, **options: Any) -> ScriptEngine:
        """Read a script: ``.json`` (a list), ``.toml`` (``[[steps]]``), or ``.py`` (``STEPS`` or ``answer``).

        Raises:
            InvalidArgument: it is none of these.
        """
        script: Any
        try:
            if path.suffix == ".py":
                names = runpy.run_path(str(path))
                script = names.get("answer") or names.get("STEPS")
            elif path.suffix == ".toml":
                script = tomllib.loads(path.read_text()).get("steps")
            else:
                script = json.loads(path.read_text())
        except (SyntaxError, ValueError) as error:
            raise InvalidArgument(f"{path} cannot be read as a script: {error}", field="script") from error
        if callable(script):
            return cls(cast("Answer", script), **options)
        if not isinstance(script, list):
            raise InvalidArgument(f"{path} holds no list of steps and no function answer", field="script")
        for number, step in enumerate(steps := cast("list[Any]", script), 1):
            _check(step, f"{path}: step {number}")
        return cls(steps, **options)

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        """Yield the step of this turn in a few deltas."""
        message = self._step(request)
        if self._latency:
            await asyncio.sleep(self._latency)
        if request.stream:
            for delta in _pieces(message):
                yield Delta(delta)
        else:
            yield Delta(as_delta(message))
        usage = Usage(
            prompt_tokens=sum(_words(one) for one in request.messages),
            completion_tokens=_words(message),
            estimated=True,
        )
        yield Final(message, "tool_calls" if message.get("tool_calls") else "stop", usage)

    async def close(self) -> None:
        """Nothing to release."""

    def _step(self, request: EngineRequest) -> Message:
        if callable(self._script):
            step = as_message(self._script(request.messages, request.tools))
        elif request.turn < len(self._script):
            step = self._script[request.turn]
        elif self._at_end == "repeat" and self._script:
            step = self._script[-1]
        else:
            raise ScriptEnded(f"the script has {len(self._script)} steps, and this is turn {request.turn + 1}")
        calls = [
            call if call["id"] else {**call, "id": f"call_{request.turn}_{index}"}
            for index, call in enumerate(step.get("tool_calls", []))
        ]
        return {**step, "tool_calls": calls} if calls else dict(step)


def _check(step: Any, what: str) -> None:
    """See that a step of a file has one of the forms.

    Raises:
        InvalidArgument: it has none.
    """
    if isinstance(step, str):
        return
    facts = cast("Message", step) if isinstance(step, dict) else {}
    calls: Any = [*_list(facts.get("calls")), *_list(facts.get("tool_calls"))]
    if not facts or not isinstance(facts.get("bash", ""), str) or not all(map(_is_call, calls)):
        hint = 'such as "text", {"bash": COMMAND} or {"content": TEXT, "calls": [{"name": NAME, "arguments": {}}]}'
        raise InvalidArgument(f"{what} is no text and no message", field="script", hint=hint)


def _list(value: Any) -> list[Any]:
    return [] if value is None else cast("list[Any]", value) if isinstance(value, list) else [None]


def _is_call(call: Any) -> bool:
    known = cast("Message", call) if isinstance(call, dict) else {}
    function: Any = known.get("function") or known
    return isinstance(function, dict) and isinstance(cast("Message", function).get("name"), str)


def as_message(step: Step) -> Message:
    """Return the assistant message of a step; tool calls without an id get one when they are answered."""
    if isinstance(step, str):
        return {"role": "assistant", "content": step}
    facts = dict(step)
    if "bash" in facts:
        facts = {**bash_step(facts.pop("bash")), **facts}
    calls = [_call(call) for call in facts.pop("calls", []) + (facts.pop("tool_calls", None) or [])]
    message: Message = {**facts, "role": "assistant", "content": facts.get("content") or (None if calls else "")}
    return {**message, "tool_calls": calls} if calls else message


def _call(call: Mapping[str, Any]) -> Message:
    function: Mapping[str, Any] = call.get("function") or call
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": text}}


def _pieces(message: Message) -> list[Message]:
    """Cut the text at blanks and arguments in halves, as a model's stream does."""
    whole = as_delta(message)
    calls = cast("list[Message]", whole.pop("tool_calls", []))
    text = str(whole.pop("content", ""))
    words = text.split(" ")
    parts = [word + " " for word in words[:-1]] + words[-1:] if text else []
    pieces: list[Message] = [{**whole, "content": ""}, *({"content": part} for part in parts)]
    for call in calls:
        function = cast("Message", call["function"])
        arguments = str(function["arguments"])
        half = len(arguments) // 2
        pieces.append({"tool_calls": [{**call, "function": {**function, "arguments": arguments[:half]}}]})
        pieces.append({"tool_calls": [{"index": call["index"], "function": {"arguments": arguments[half:]}}]})
    return pieces


def _words(message: Message) -> int:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content or "")
    calls = message.get("tool_calls")
    return len(text.split()) + (len(json.dumps(calls).split()) if calls else 0)
