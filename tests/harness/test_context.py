"""A context that overflows once is an outcome, or mended, and no failure. Other scenes are in ``test_scenes``."""

import pytest
from tests.harness.conftest import EVERY, Play, trained_once
from tests.harness.scripts import Overflowing

from orchard.rollout.toy_model import ToyModel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

IN_SCENES = ("claude-code", "codex", "opencode", "pi")
"""Held to the same in ``test_scenes``."""
OTHERS = [name for name in EVERY if name not in (*IN_SCENES, "command")]


@pytest.mark.parametrize("harness", OTHERS, indirect=True)
async def test_a_full_context_is_an_outcome_or_is_mended_and_no_failure(harness: str, play: Play) -> None:
    ran = await play(harness, engine=Overflowing(ToyModel()))
    full = [call for call in ran.found.calls if call.error_code == "context_length_exceeded"]
    assert [call.status for call in full] == ["error"], ran.told()
    assert full[0].sampled_ids is None
    assert ran.record.failure is None, ran.told()
    # one that takes what it had sent for all that fits compacts until its turns are spent
    assert ran.record.stop in ("context", "submitted", "budget"), ran.told()
    assert ran.record.reward == 1.0, "the work that was done is graded"
    trained_once(ran)
