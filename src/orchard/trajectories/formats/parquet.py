"""Parquet, as Hugging Face ``datasets`` loads it: one row for each conversation. Needs the extra ``parquet``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from orchard.core.errors import MachineUnfit
from orchard.trajectories.formats.conversations import conversations, text_of, tool_calls
from orchard.trajectories.messages import Message, reasoning_of
from orchard.trajectories.stats import harness_of
from orchard.trajectories.trajectory import Branch, Trajectory

_ROWS = 256
"""Rows that are in memory at once, and make a row group."""
_FACTS = ("run", "task", "attempt", "harness_version", "policy", "policy_version", "reward", "stop", "patch")


def write(trajectories: Iterable[Trajectory], path: Path, *, side_calls: bool = False) -> int:
    """Write one row for each conversation; return how many there are.

    Args:
        trajectories: what to write.
        path: the file.
        side_calls: also conversations beside the work (titles, summaries).

    Raises:
        MachineUnfit: pyarrow is not installed.
    """
    return write_rows(rows(trajectories, side_calls=side_calls), path)


def rows(trajectories: Iterable[Trajectory], *, side_calls: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the rows of trajectories; see ``write``."""
    return (_row(found, branch) for found, branch in conversations(trajectories, side_calls=side_calls))


def write_rows(every: Iterator[dict[str, Any]], path: Path) -> int:
    """Write rows; return how many there are. See ``write``."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        hint = "pip install 'orchard-env[parquet]'"
        raise MachineUnfit("writing Parquet needs pyarrow, which is not installed", hint=hint) from error
    schema, count = _schema(arrow), 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(every):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _groups(every: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while group := list(islice(every, _ROWS)):
        yield group


def _schema(arrow: Any) -> Any:
    text, whole = arrow.string(), arrow.int64()
    call = arrow.struct([("id", text), ("name", text), ("arguments", text)])
    message = arrow.struct(
        [("role", text), ("content", text), ("reasoning", text), ("tool_call_id", text),
         ("tool_calls", arrow.list_(call))]
    )  # fmt: skip
    kinds = {"attempt": whole, "reward": arrow.float64()}
    return arrow.schema(
        [("id", text), ("session", text), ("rollout", text), ("harness", text), ("model", text), ("purpose", text),
         *((name, kinds.get(name, text)) for name in _FACTS), ("messages", arrow.list_(message)), ("tools", text),
         ("prompt_tokens", whole), ("completion_tokens", whole)]
    )  # fmt: skip


def _row(found: Trajectory, branch: Branch) -> dict[str, Any]:
    rollout, leaf = found.rollout, branch.leaf
    facts = {name: getattr(rollout, name) for name in _FACTS} if rollout else {}
    return {
        **facts, "id": leaf.id, "session": found.session, "rollout": rollout.id if rollout else None,
        "harness": harness_of(found), "model": leaf.model, "purpose": leaf.purpose,
        "messages": [_message(one) for one in branch.messages], "tools": json.dumps(found.tools(leaf.id)),
        "prompt_tokens": sum(call.usage.prompt_tokens for call in branch.calls),
        "completion_tokens": sum(call.usage.completion_tokens for call in branch.calls),
    }  # fmt: skip


def _message(message: Message) -> dict[str, Any]:
    names, answers = ("id", "name", "arguments"), message.get("tool_call_id")
    return {
        "role": str(message.get("role")), "content": text_of(message.get("content")),
        "reasoning": reasoning_of(message) or None, "tool_call_id": None if answers is None else str(answers),
        "tool_calls": [dict(zip(names, call, strict=True)) for call in tool_calls(message)],
    }  # fmt: skip
