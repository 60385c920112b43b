"""ATIF, the agent trajectory interchange format of Harbor, version 1.4: one document a line for each conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, cast

from orchard.trajectories.formats.conversations import answers, conversations, text_of, tool_calls
from orchard.trajectories.messages import Message, reasoning_of
from orchard.trajectories.records import CallRecord
from orchard.trajectories.stats import harness_of
from orchard.trajectories.trajectory import Branch, Trajectory, total_usage

VERSION = "ATIF-v1.4"
_SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}

Step = dict[str, Any]


def write(trajectories: Iterable[Trajectory], *, side_calls: bool = False) -> Iterator[str]:
    """Yield one line for each conversation.

    Args:
        trajectories: what to write.
        side_calls: also conversations beside the work (titles, summaries).
    """
    for found, branch in conversations(trajectories, side_calls=side_calls):
        yield json.dumps(document(found, branch))


def document(found: Trajectory, branch: Branch) -> dict[str, Any]:
    """Return one conversation as an ATIF document."""
    rollout, usage = found.rollout, total_usage(branch.calls)
    steps = _steps(found, branch)
    extra: dict[str, Any] = {"orchard_session": found.session, "leaf_call": branch.leaf.id}
    if rollout is not None:
        extra |= {"rollout": rollout.id, "task": rollout.task, "attempt": rollout.attempt, "reward": rollout.reward}
    return {
        "schema_version": VERSION,
        "session_id": f"{found.session}-{branch.leaf.index}",
        "agent": {
            "name": harness_of(found), "version": rollout.harness_version if rollout else "unknown",
            "model_name": branch.leaf.model, "extra": {"tools": found.tools(branch.leaf.id)},
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": usage.prompt_tokens, "total_completion_tokens": usage.completion_tokens,
            "total_cached_tokens": usage.cached_tokens, "total_steps": len(steps),
        },
        "extra": extra,
    }  # fmt: skip


def _steps(found: Trajectory, branch: Branch) -> list[Step]:
    steps: list[Step] = []
    calls = answers(found, branch)
    for position, message in enumerate(branch.messages):
        if message.get("role") == "tool" and steps and steps[-1]["source"] == "agent":
            _observe(steps[-1], message)
            continue
        step: Step = {
            "step_id": len(steps) + 1, "source": _SOURCES.get(str(message.get("role")), "user"),
            "message": text_of(message.get("content")),
        }  # fmt: skip
        if step["source"] == "agent":
            step |= _agent(found, message, calls.get(position))
        steps.append(step)
    return steps


def _agent(found: Trajectory, message: Message, call: CallRecord | None) -> Step:
    step: Step = {}
    if reasoning := reasoning_of(message):
        step["reasoning_content"] = reasoning
    if asked := tool_calls(message):
        step["tool_calls"] = [
            {"tool_call_id": identity, "function_name": name, "arguments": _object(arguments)}
            for identity, name, arguments in asked
        ]
    if call is not None:
        at: datetime = call.times.engine_end or call.times.received
        step |= {"timestamp": at.isoformat(), "model_name": call.model, "metrics": _metrics(found, call)}
    return step


def _metrics(found: Trajectory, call: CallRecord) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": call.usage.prompt_tokens, "completion_tokens": call.usage.completion_tokens,
        "cached_tokens": call.usage.cached_tokens,
    }  # fmt: skip
    ids = {
        "prompt_token_ids": found.prompt_ids(call.id), "completion_token_ids": call.sampled_ids,
        "logprobs": call.logprobs,
    }  # fmt: skip
    return metrics | {name: value for name, value in ids.items() if value is not None}


def _observe(step: Step, message: Message) -> None:
    """Join a tool's result: by its id, or where the harness has rewritten that, to the next call without a result."""
    results = step.setdefault("observation", {"results": []})["results"]
    asked = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    open_ = [identity for identity in asked if identity not in {result.get("source_call_id") for result in results}]
    identity = message.get("tool_call_id")
    source = identity if identity in asked else next(iter(open_), None)
    results.append(({"source_call_id": source} if source else {}) | {"content": text_of(message.get("content"))})


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except ValueError:
        return {"input": arguments}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"input": value}
