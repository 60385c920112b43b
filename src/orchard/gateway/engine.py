"""The seam to what samples: an engine takes chat messages and yields deltas, then one final answer.

Adding one is a file in ``engines/`` that fulfils ``Engine`` and a line in ``engines/__init__.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from orchard.trajectories import Usage
from orchard.trajectories.messages import Message


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
    raw_logprobs: Any = None
    """``choices[0].logprobs`` as the engine gave it, for a harness that asked for it."""


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

    def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        """Yield any number of deltas, then exactly one final answer.

        Raises:
            EngineUnavailable: may be tried again.
            EngineRefused: never will be otherwise.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class Assembly:
    """Builds the assistant message of the deltas that have arrived so far."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, Message] = {}
        self._other: Message = {}

    def add(self, delta: Message) -> None:
        """Take one more delta."""
        for key, value in delta.items():
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


def as_delta(message: Message) -> Message:
    """Return one delta that holds the whole of ``message``."""
    delta = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
    if message.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    return delta
