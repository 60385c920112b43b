"""What befalls a harness's requests costs it a retry, and the record neither a call nor a sample."""

import json

import pytest
from tests.harness.conftest import EVERY, Play, trained_once
from tests.support.harassed import EACH

from orchard.harness import check as toy

SILENT = ("zeroclaw",)
"""Harnesses that ask again without saying so: where a whole answer was lost on its way, it is one more call."""
pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@pytest.mark.parametrize("harness", [name for name in EVERY if name != "command"], indirect=True)
async def test_an_error_a_wait_a_drop_and_a_cut_in_one_run(harness: str, play: Play) -> None:
    ran = await play(harness, faults=EACH)
    assert ran.met == [fault for fault in EACH if fault is not None], ran.told()
    assert ran.record.failure is None, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    answered = [call for call in ran.found.calls if call.status == "ok" and call.purpose == "agent"]
    words = [str(call.answer["content"]) for call in answered if call.answer]  # one that tells the fault forks
    assert list(dict.fromkeys(words)) == list(toy.SAYS), ran.told()
    trained_once(ran)
    cut = [call for call in ran.found.calls if call.status != "ok"]
    streamed = any(call.streamed for call in ran.found.calls)
    assert [call.status for call in cut] == ["aborted"] * streamed, ran.told()
    for call in cut:
        assert call.error_code == "engine_unavailable"
        assert toy.SAYS[3].startswith((call.answer or {}).get("content") or ""), "what had arrived, and no more"
    prompts = [json.dumps(ran.found.prompt(call.id)) for call in ran.found.calls if call.status == "ok"]
    assert len(prompts) - len(set(prompts)) == (harness in SILENT), "a retry is no call of its own"
