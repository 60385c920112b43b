"""The seam to what samples: an engine takes chat messages and yields deltas, then one final answer.

Adding one is a file in ``engines/`` that fulfils ``Engine`` and a line in ``engines/__init__.py``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

from orchard.core.text import carried
from orchard.gateway.errors import EngineRefused
from orchard.gateway.tokens import Tokens
from orchard.trajectories import MaskedSpan, PolicySpan, Usage
from orchard.trajectories.messages import Message


@dataclass(frozen=True)
class Prefix:
    """A recorded conversation that a prompt begins with."""

    messages: int
    """How many messages of the prompt it holds; the last one is an answer."""
    ids: Sequence[int]
    """Its ids exactly as they were prompted and sampled."""


@dataclass(frozen=True)
class EngineRequest:
    """One call, in OpenAI chat form."""

    session: str
    turn: int
    """How many calls of the session were answered or are being answered before this one."""
    model: str
    messages: Sequence[Message]
    tools: Sequence[Message] = ()
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    """Everything else in the request (``temperature``, ``max_tokens``, ``tool_choice`` …), as the harness sent it."""
    stream: bool = False
    """Whether somebody wants the deltas live. An engine may yield them anyway."""
    prefix: Prefix | None = None
    """The longest recorded conversation with ids and the same tools that the messages begin with."""


@dataclass(frozen=True)
class Answering:
    """Who answers this call, where the engine that was asked stands for others; yielded before all else."""

    engine: str
    """Its name, for the record."""
    replayed: str | None = None
    """Id of the recorded call whose answer it is."""
    but_for: Sequence[str] = ()
    """What wrote other words into the request than into the recorded one."""


@dataclass(frozen=True)
class Prompted:
    """The prompt's ids as they were made here; yielded before any delta, so that a cut answer's record has them."""

    ids: Sequence[int]
    mode: Literal["splice", "template"]
    template_hash: str
    spliced_ids: int = 0
    """How many ids at its head are recorded ones."""
    prefix: Prefix | None = None
    """The request's, if it is these recorded ids."""
    dropped: Sequence[str] = ()
    """Parameters of the request that the engine has no use for, by name."""


@dataclass(frozen=True)
class Delta:
    """A piece of the answer: the ``delta`` of an OpenAI chunk, and its ``logprobs``, if any."""

    delta: Message
    logprobs: Any = None


@dataclass(frozen=True)
class Final:
    """The whole answer; the last thing an engine yields."""

    message: Message
    finish_reason: str
    usage: Usage
    model: str | None = None
    """Model name as sent to the engine, where it is not the request's."""
    sampling: dict[str, Any] | None = None
    """Parameters as sent, where they are not the request's."""
    policy_version: str | None = None
    prompt_ids: list[int] | None = None
    sampled_ids: list[int] | None = None
    logprobs: list[float] | None = None
    spans: Sequence[PolicySpan] = ()
    """Which weights sampled which ids, where they changed in mid-answer."""
    masked: Sequence[MaskedSpan] = ()
    """Sampled ids that are not to be trained, whatever was asked for."""
    routed_experts: str | None = None
    """Which experts worked on each id, where the engine told."""
    stop_string: str | None = None
    """The string to stop at that ended it, where the engine told."""
    raw_logprobs: Any = None
    """``choices[0].logprobs`` as the engine gave it, for a harness that asked for it."""

    def delivered(self) -> Final:
        """Return what goes out to a harness, now or at a retry: without what only the record needs."""
        return replace(self, prompt_ids=None, sampled_ids=None, logprobs=None, spans=(), masked=(), routed_experts=None)


Part = Answering | Prompted | Tokens | Delta | Final
"""``Tokens``: the next sampled ids, where the engine tells them as it goes; so a cut answer's record has them."""


class Engine(Protocol):
    """What samples. One object serves many sessions at once."""

    @property
    def name(self) -> str:
        """Short word for the record: ``openai``, ``script`` …."""
        ...

    @property
    def policy_version(self) -> str | None:
        """Version of the weights that answer now, where known."""
        ...

    def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        """Yield any number of deltas (before them ``Prompted``, if it renders), then exactly one final answer.

        Raises:
            EngineUnavailable: may be tried again.
            EngineRefused: never will be otherwise.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


_PARTS = {"text": "content", "output_text": "content", "thinking": "reasoning_content"}
"""Type of a part of an answer's content -> the field that its text belongs to."""


class Assembly:
    """Builds the assistant message of the deltas that have arrived so far."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, Message] = {}
        self._other: Message = {}

    def add(self, delta: Message) -> None:
        """Take one more delta."""
        for key, value in as_text(delta).items():
            if key == "tool_calls":
                for piece in cast("list[Message]", value or []):
                    self._add_call(piece)
            elif key != "role" and isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
            elif value is not None and key != "role":
                self._other[key] = value

    def _add_call(self, piece: Message) -> None:
        index = int(piece.get("index", len(self._calls)))
        call = self._calls.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        if piece.get("id"):
            call["id"] = piece["id"]
        function: Message = piece.get("function") or {}
        if function.get("name"):
            call["function"]["name"] = function["name"]  # whole in the first piece; some servers repeat it
        call["function"]["arguments"] += function.get("arguments") or ""

    @property
    def message(self) -> Message:
        """The assistant message so far."""
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        message: Message = {"role": "assistant", "content": texts.pop("content", "") or None, **texts, **self._other}
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        elif message["content"] is None:
            message["content"] = ""
        return message


def as_text(message: Message) -> Message:
    """Return an answer, or a delta of one, with text where OpenAI's form has text.

    Some servers send ``content`` as a list of parts, of text and of thinking, and a call's ``arguments`` as an object.

    Raises:
        EngineRefused: the content holds a part that is not text; no harness could read it.
    """
    changed: Message = {}
    if isinstance(content := message.get("content"), list):
        changed |= _joined(cast("list[Any]", content), message)
    calls = cast("list[Message]", message.get("tool_calls") or [])
    if any(_is_object(call) for call in calls):
        changed["tool_calls"] = [_written(call) if _is_object(call) else call for call in calls]
    return {**message, **changed} if changed else message


def plain(part: Part) -> Part:
    """Return what an engine yielded as every harness and every reader of records can take it.

    Raises:
        EngineRefused: see ``as_text``; or not each sampled id has its log-probability.
    """
    if isinstance(part, Tokens):
        _paired(part.ids, part.logprobs)
    if isinstance(part, Answering | Prompted | Tokens):
        return part
    if isinstance(part, Delta):
        return replace(part, delta=carried(as_text(part.delta)), logprobs=carried(part.logprobs))
    if part.sampled_ids is not None and part.logprobs is not None:
        _paired(part.sampled_ids, part.logprobs)
    told = {"raw_logprobs": carried(part.raw_logprobs), "stop_string": carried(part.stop_string)}
    return replace(part, message=carried(as_text(part.message)), **told)


def _paired(ids: list[int], logprobs: list[float]) -> None:
    if len(ids) != len(logprobs):
        raise EngineRefused(f"the engine tells {len(logprobs)} log-probabilities for {len(ids)} ids: no sample is made")


def _joined(parts: list[Any], message: Message) -> Message:
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
    for part in parts:
        known = cast("Message", part) if isinstance(part, dict) else {"type": "text", "text": part}
        kind = str(known.get("type"))
        value = known.get("text", known.get("thinking"))
        if isinstance(value, list):  # thinking is a list of text parts in its turn
            value = _joined(cast("list[Any]", value), {})["content"]
        if kind not in _PARTS or not isinstance(value, str):
            raise EngineRefused(f"the model answered with a part of type {kind!r} in its content, which is no text")
        texts[_PARTS[kind]].append(value)
    joined: Message = {key: "".join(pieces) for key, pieces in texts.items() if pieces or key == "content"}
    return joined if not message.get("reasoning_content") else {"content": joined["content"]}


def _is_object(call: Message) -> bool:
    return isinstance(cast("Message", call.get("function") or {}).get("arguments"), dict)


def _written(call: Message) -> Message:
    function = cast("Message", call["function"])
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def as_delta(message: Message) -> Message:
    """Return one delta that holds the whole of ``message``."""
    delta = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
    if message.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    return delta
