"""What real harnesses sent, recorded and cleaned (``python -m tests.harness.record``), is read and known again."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.overheard import GOLDEN, unfolded

from orchard.gateway import Gateway, ScriptEngine
from orchard.gateway.dialects import DIALECTS
from orchard.trajectories import Store
from orchard.trajectories.messages import keys

SAMPLES = sorted(GOLDEN.glob("*.json"))
EACH = pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)


def test_each_dialect_has_a_sample() -> None:
    seen = {f"/{call['path'].split('?')[0].split('/', 2)[2]}" for path in SAMPLES for call in calls_of(path)}
    assert seen == set(DIALECTS)


def calls_of(path: Path) -> list[dict[str, Any]]:
    return unfolded(json.loads(path.read_text())["calls"])


@EACH
async def test_its_calls_are_one_conversation(path: Path, store: Store) -> None:
    calls = calls_of(path)
    async with (
        Gateway(store, {"script": ScriptEngine([call["answer"] for call in calls])}) as gateway,
        aiohttp.ClientSession() as http,
    ):
        session = await gateway.open_session()
        for call in calls:
            url = session.url + call["path"]
            async with http.post(url, json=call["body"], headers=call["headers"]) as got:
                said = await got.text()
                assert got.status == 200, said
                assert json.dumps(call["answer"]["content"]).strip('"').split()[-1] in said
    recorded = store.session(session.id)
    assert [one.answer for one in recorded.calls] == [call["answer"] for call in calls]
    placed = [(one.matched, one.purpose, one.kept_messages) for one in recorded.calls]
    assert placed == [(call["matched"], call["purpose"], call["kept"]) for call in calls]
    work = [one for one in recorded.calls if one.purpose == "agent"]
    if work[-1].matched == "extends":
        prompt = keys(recorded.prompt(work[-1].id))
        assert all(key in prompt for one in work[:-1] for key in keys(recorded.prompt(one.id)))


@EACH
def test_it_names_no_machine(path: Path) -> None:
    text = path.read_text()
    for word in ("/root", "/work/", "Bearer ", " sk-", '"sk-', "x-api-key"):
        assert word not in text
