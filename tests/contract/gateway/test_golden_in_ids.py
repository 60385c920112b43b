"""What real harnesses sent, answered in token ids: whatever they make of their history, samples hold together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.contract.gateway.test_golden import SAMPLES
from tests.support.models import renderer
from tests.support.replaying import Replayed, replay

from orchard.gateway import Engine, ScriptedTokens, TokenExact
from orchard.gateway.exact import Mode
from orchard.gateway.parity import parity
from orchard.trajectories import WORK, Store, to_samples

QWEN3 = renderer("qwen3")
EACH = pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)


async def play(path: Path, mode: Mode, store: Store) -> Replayed:
    def tokens(answer: Mapping[str, Any]) -> Engine:
        return TokenExact(ScriptedTokens(QWEN3, [answer]), QWEN3, mode=mode)

    return await replay(path, store, tokens)


@EACH
async def test_each_conversation_is_one_sample_and_no_id_is_trained_twice(path: Path, store: Store) -> None:
    """Or one for each time that a harness itself went back in its history."""
    played = await play(path, "splice", store)
    trajectory = played.found
    work = [call for call in trajectory.calls if call.purpose in WORK and call.status == "ok"]
    assert [call.matched for call in trajectory.calls] == [call["matched"] for call in played.calls]
    for call, prompt in zip(trajectory.calls, played.prompts, strict=True):
        assert trajectory.prompt_ids(call.id) == prompt, "the path to a call is the prompt that was served"
        if call in work and call.matched == "extends" and call.parent is not None:
            before = trajectory.call(call.parent)
            prompt = trajectory.prompt_ids(before.id) or []
            assert call.spliced_ids == call.kept_ids == len(prompt) + len(before.sampled_ids or [])
    samples = to_samples(trajectory)
    assert len(samples) == sum(call.matched != "extends" for call in work)
    assert sum(sum(sample.mask) for sample in samples) == sum(len(call.sampled_ids or []) for call in work)
    changed = {name for call in work for name in call.normalised}
    differs = any(one.differing for one in parity(trajectory, QWEN3))
    assert differs or not changed & {"reasoning_dropped", "arguments_rewritten"}
    assert not differs or changed & {"reasoning_dropped", "arguments_rewritten", "arguments"}


@EACH
async def test_a_stock_server_would_have_made_the_same_prompts(path: Path, store: Store) -> None:
    trajectory = (await play(path, "template", store)).found
    with_ids = [call for call in trajectory.calls if trajectory.prompt_ids(call.id) is not None]
    assert [(one.differing, one.template) for one in parity(trajectory, QWEN3)] == [(0, True)] * len(with_ids)
