"""One rollout as the page shows it: its calls in order, each with the commands it asked for and what they gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchard.trajectories import CallRecord, ToolRecord, Trajectory
from orchard.trajectories.messages import Message, reasoning_of


def view(trajectory: Trajectory) -> dict[str, Any]:
    """Return everything the page tells of a closed rollout, JSON-serialisable.

    A command is joined to the answer that asked for it by the answer's id, else by order and text.
    """
    row = trajectory.rollout
    assert row is not None
    left = list(row.tools)
    calls = [_call(call, left) for call in trajectory.calls]
    return {
        "id": row.id, "task": row.task, "harness": f"{row.harness} {row.harness_version}", "policy": row.policy,
        "model": row.model, "attempt": row.attempt, "tries": row.tries, "sessions": row.sessions,
        "reward": row.reward, "stop": row.stop, "detail": row.stop_detail, "turns": row.turns,
        "failure": row.failure.model_dump() if row.failure else None, "instruction": row.instruction,
        "submission": row.submission, "patch": row.patch, "seconds": row.seconds,
        "started": row.started_at.isoformat(timespec="seconds"), "environment": row.environment,
        "rewards": [reward.model_dump() for reward in row.rewards], "calls": calls,
        "commands": [_command(tool) for tool in left], "earlier": len(trajectory.earlier),
        "usage": trajectory.usage.model_dump(),
    }  # fmt: skip


def _call(call: CallRecord, left: list[ToolRecord]) -> dict[str, Any]:
    answer = call.answer or {}
    end = call.times.engine_end
    return {
        "index": call.index, "status": call.status, "error": call.error, "matched": call.matched,
        "purpose": call.purpose, "kept": call.kept_messages, "finish": call.finish_reason,
        "seconds": round((end - call.times.received).total_seconds(), 3) if end else None,
        "tokens": [call.usage.prompt_tokens, call.usage.completion_tokens],
        "prompt": [_message(message) for message in call.messages],
        "text": _text(answer.get("content")), "reasoning": reasoning_of(answer),
        "commands": list(_commands(call, answer, left)),
    }  # fmt: skip


def _commands(call: CallRecord, answer: Message, left: list[ToolRecord]) -> Iterator[dict[str, Any]]:
    for function in _functions(answer):
        name, raw = str(function.get("name")), function.get("arguments") or ""
        command = _argument(raw)
        found = next((tool for tool in left if _answers(tool, call, command)), None)
        if found is None:
            yield {"name": name, "command": command, "output": None, "exit": None, "seconds": None, "note": None}
        else:
            left.remove(found)
            yield _command(found)


def _answers(tool: ToolRecord, call: CallRecord, command: str) -> bool:
    same = tool.arguments.get("command") == command
    return same and tool.call_id in (None, call.response_id)


def _command(tool: ToolRecord) -> dict[str, Any]:
    command = tool.arguments.get("command")
    text = command if isinstance(command, str) else json.dumps(command or tool.arguments)
    return {
        "name": tool.name, "command": text, "output": tool.output, "exit": tool.exit_code, "seconds": tool.seconds,
        "note": tool.error,
    }  # fmt: skip


def _argument(raw: object) -> str:
    """Return the command of a call of ``bash``, or the arguments as they stand."""
    try:
        arguments = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return str(raw)
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else json.dumps(arguments)


def _message(message: Message) -> dict[str, Any]:
    asked = [f"→ {function.get('name')} {function.get('arguments')}" for function in _functions(message)]
    return {
        "role": str(message.get("role")),
        "text": "\n".join(part for part in (_text(message.get("content")), *asked) if part),
    }


def _functions(message: Message) -> list[dict[str, Any]]:
    """Return what a message calls; a harness may have sent anything in its place."""
    calls = message.get("tool_calls")
    found = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [function for function in found if isinstance(function, dict)]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return ""


def _part(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        return str(part.get("text"))
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    return f"[{kind}]"
