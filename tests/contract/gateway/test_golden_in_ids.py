"""What real harnesses sent, answered in token ids: whatever they make of their history, samples hold together."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.gateway.test_golden import SAMPLES, calls_of
from tests.support.models import renderer

from orchard.gateway import Gateway, ScriptedTokens, TokenExact
from orchard.gateway.exact import Mode
from orchard.gateway.parity import parity
from orchard.trajectories import Store, Trajectory, to_samples

QWEN3 = renderer("qwen3")
EACH = pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)


async def play(path: Path, mode: Mode, store: Store) -> Trajectory:
    """Send a run again; the ids of tool calls are those of this time."""
    calls, ids = calls_of(path), dict[str, str]()
    tokens = ScriptedTokens(QWEN3, [call["answer"] for call in calls])
    async with (
        Gateway(store, {"t": TokenExact(tokens, QWEN3, mode=mode)}) as gateway,
        aiohttp.ClientSession() as http,
    ):
        session = await gateway.open_session()
        for call in calls:
            body = json.dumps(call["body"])
            for old, new in ids.items():
                body = body.replace(f'"{old}"', f'"{new}"')
            async with http.post(session.url + call["path"], data=body, headers=call["headers"]) as got:
                said = await got.text()
                assert got.status == 200, said
            answer: dict[str, Any] = store.session(session.id).calls[-1].answer or {}
            pairs = zip(call["answer"].get("tool_calls", []), answer.get("tool_calls", []), strict=True)
            ids |= {old["id"]: new["id"] for old, new in pairs}
    return store.session(session.id)


@EACH
async def test_a_run_is_one_sample(path: Path, store: Store) -> None:
    """Or one for each time that a harness itself went back in its history."""
    trajectory = await play(path, "splice", store)
    work = [call for call in trajectory.calls if call.purpose == "agent"]
    assert [call.matched for call in trajectory.calls] == [call["matched"] for call in calls_of(path)]
    for call in work:
        if call.matched == "extends" and call.parent is not None:
            before = trajectory.call(call.parent)
            prompt = trajectory.prompt_ids(before.id) or []
            assert call.spliced_ids == call.kept_ids == len(prompt) + len(before.sampled_ids or [])
    samples = to_samples(trajectory)
    assert len(samples) == sum(call.matched != "extends" for call in work)
    assert sum(sum(sample.mask) for sample in samples) == sum(len(call.sampled_ids or []) for call in work)
    changed = {name for call in work for name in call.normalised} & {"reasoning_dropped", "arguments_rewritten"}
    assert any(one.differing for one in parity(trajectory, QWEN3)) == bool(changed)


@EACH
async def test_a_stock_server_would_have_made_the_same_prompts(path: Path, store: Store) -> None:
    trajectory = await play(path, "template", store)
    assert [(one.differing, one.template) for one in parity(trajectory, QWEN3)] == [(0, True)] * len(trajectory.calls)
