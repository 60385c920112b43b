"""What real harnesses sent, recorded and cleaned (``python -m tests.harness.record``), is read and known again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.overheard import GOLDEN
from tests.support.replaying import calls_of, replay

from orchard.gateway import Engine, ScriptEngine
from orchard.gateway.dialects import DIALECTS
from orchard.trajectories import Store
from orchard.trajectories.messages import Message, keys

SAMPLES = sorted(GOLDEN.glob("*.json"))
EACH = pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)


def dialect_path(call: Mapping[str, Any]) -> str:
    return f"/{call['path'].split('?')[0].split('/', 2)[2]}"


def test_each_dialect_has_a_sample() -> None:
    assert {dialect_path(call) for path in SAMPLES for call in calls_of(path)} == set(DIALECTS)


def script(answer: Mapping[str, Any]) -> Engine:
    return ScriptEngine(lambda messages, tools: answer)


def served(call: Mapping[str, Any]) -> list[Message]:
    asked = DIALECTS[dialect_path(call)].parse(json.dumps(call["body"]).encode(), call["headers"])
    return asked.messages


@EACH
async def test_its_calls_are_placed_and_named_as_they_were(path: Path, store: Store) -> None:
    played = await replay(path, store, script)
    calls, recorded = played.calls, played.found.calls
    assert [one.answer for one in recorded] == [call["answer"] for call in calls]
    placed = [(one.matched, one.purpose, one.kept_messages) for one in recorded]
    assert placed == [(call["matched"], call["purpose"], call["kept"]) for call in calls]
    for call, one, said in zip(calls, recorded, played.said, strict=True):
        assert played.found.prompt(one.id) == served(call), "the path to a call is the prompt that was served"
        if one.answer is not None:
            assert json.dumps(one.answer["content"]).strip('"').split()[-1] in said
    if all(one.purpose == "agent" for one in recorded) and recorded[-1].matched == "extends":
        prompt = keys(played.found.prompt(recorded[-1].id))
        assert all(key in prompt for one in recorded[:-1] for key in keys(played.found.prompt(one.id)))


@EACH
def test_it_names_no_machine(path: Path) -> None:
    text = path.read_text()
    for word in ("/root", "/work/", "Bearer ", " sk-", '"sk-', "x-api-key"):
        assert word not in text
