"""The trajectory file of mini-swe-agent 2, ``"trajectory_format": "mini-swe-agent-1.1"``.

Each model call is an assistant message. A reply that broke the format is not among the messages: it is kept in the
``extra.response`` of the user message that complains about it, and is a call of its own here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from orchard.core.errors import InvalidArgument
from orchard.trajectories.messages import Message
from orchard.trajectories.records import (
    CallRecord,
    CallTimes,
    RolloutRecord,
    SessionRecord,
    ToolRecord,
    Usage,
)

FORMAT = "mini-swe-agent-1.1"
_STOPS = {
    "Submitted": "submitted", "LimitsExceeded": "turns", "TimeExceeded": "time", "RepeatedFormatError": "format",
    "ContextWindowExceededError": "context",
}  # fmt: skip


@dataclass
class _Reading:
    session: str
    model: str
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    prompt: list[Message] = field(default_factory=list[Message])
    tools: list[ToolRecord] = field(default_factory=list[ToolRecord])
    kept: int = 0
    """How many messages of ``prompt`` the parent's conversation holds."""
    parent: str | None = None
    kept_answer: bool = False

    def call(self, answer: Message, extra: Message, *, stays: bool) -> None:
        """Add a model call; ``stays``: its answer is in the history from now on."""
        response = cast("Message", extra["response"]) if isinstance(extra.get("response"), dict) else {}
        choices = cast("list[Message]", response.get("choices") or [{}])
        usage = cast("Message", response.get("usage") or {})
        number = len(self.calls)
        at = datetime.fromtimestamp(float(extra.get("timestamp") or 0.0), UTC)
        self.calls.append(
            CallRecord(
                id=f"{self.session}-{number}", session=self.session, index=number, dialect="openai.chat",
                model=self.model, engine="imported", times=CallTimes(received=at), answer=answer,
                parent=self.parent, kept_messages=self.kept, messages=self.prompt[self.kept :],
                matched="root" if self.parent is None else "extends" if self.kept_answer else "forked",
                finish_reason=choices[0].get("finish_reason"), response_id=str(response.get("id") or ""),
                usage=Usage(
                    prompt_tokens=int(usage.get("prompt_tokens") or 0),
                    completion_tokens=int(usage.get("completion_tokens") or 0),
                ),
            )
        )  # fmt: skip
        self.parent, self.kept, self.kept_answer = self.calls[-1].id, len(self.prompt) + stays, stays
        if stays:
            self.prompt.append(answer)


def read(
    data: Message, *, run: str, task: str, attempt: int = 0, reward: float | None = None
) -> Iterator[SessionRecord | CallRecord | RolloutRecord]:
    """Yield the records of one file: a session, its calls, and the closing record.

    Args:
        data: the parsed file.
        run: name of the run that they are to belong to.
        task: id of the task.
        attempt: number of the attempt at it.
        reward: what it was graded with, where known.

    Raises:
        InvalidArgument: it is of another format.
    """
    if data.get("trajectory_format") != FORMAT or not isinstance(data.get("messages"), list):
        raise InvalidArgument(f"not a trajectory of the format {FORMAT}", field="trajectory_format")
    info = cast("Message", data.get("info") or {})
    config = cast("Message", info.get("config") or {})
    name = str(cast("Message", config.get("model") or {}).get("model_name") or "unknown")
    identity = hashlib.blake2b("\0".join((run, task, "mini-swe-agent", name, str(attempt))).encode(), digest_size=10)
    reading = _Reading(f"se-{identity.hexdigest()}", name)
    for message in cast("list[Message]", data["messages"]):
        _take(reading, message)
    start = reading.calls[0].times.received if reading.calls else datetime.fromtimestamp(0, UTC)
    yield SessionRecord(session=reading.session, at=start, labels={"run": run, "task": task}, engine="imported")
    yield from reading.calls
    status = str(info.get("exit_status") or "")
    yield RolloutRecord(
        id=f"ro-{identity.hexdigest()}", run=run, task=task, attempt=attempt, tries=1, sessions=[reading.session],
        harness="mini-swe-agent", harness_version=str(info.get("mini_version") or ""), policy=name, model=name,
        stop=_STOPS.get(status), stop_detail=status, turns=len(reading.calls), tools=reading.tools,
        submission=str(info.get("submission") or "") or None, reward=reward, started_at=start,
        labels={"imported": FORMAT},
    )  # fmt: skip


def _take(reading: _Reading, message: Message) -> None:
    extra = cast("Message", message.get("extra") or {})
    plain = {key: value for key, value in message.items() if key != "extra"}
    if message.get("role") == "assistant":
        reading.call(plain, extra, stays=True)
        return
    if message.get("role") == "exit":
        return
    if extra.get("interrupt_type") == "FormatError" and isinstance(extra.get("response"), dict):
        choices = cast("list[Message]", extra["response"].get("choices") or [{}])
        reading.call(cast("Message", choices[0].get("message") or {"role": "assistant"}), extra, stays=False)
    if "raw_output" in extra:
        reading.tools.append(_tool(reading, message, extra))
    reading.prompt.append(plain)


def _tool(reading: _Reading, message: Message, extra: Message) -> ToolRecord:
    call_id = message.get("tool_call_id")
    answer = reading.calls[-1].answer if reading.calls else None
    calls: list[Message] = (answer or {}).get("tool_calls") or []
    text = next((str(call["function"]["arguments"]) for call in calls if call.get("id") == call_id), "{}")
    return ToolRecord(
        call_id=str(call_id) if call_id else None, name="bash", arguments=json.loads(text),
        output=str(extra.get("raw_output") or ""), exit_code=extra.get("returncode"),
        error=str(extra["exception_info"]) if extra.get("exception_info") else None,
    )  # fmt: skip
