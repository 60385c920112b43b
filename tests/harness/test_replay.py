"""Each harness, the real program, comes to the same turn again when its recorded answers answer, on another day too."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.harness.conftest import EVERY, Play

from orchard.gateway import ReplayEngine
from orchard.gateway.engines.replay import reproduced
from orchard.rollout.toy_model import ToyModel
from orchard.trajectories import Trajectory, to_samples

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

CHANCE = {"codex", "openclaw"}
"""Those that name an output, or a session, by chance in their prompts."""
DATED = {"claude-code", "codex", "hermes-agent", "kimi-code", "openclaw", "opencode", "zeroclaw"}
"""Those that tell the model what day it is."""
DAYS = ("%Y-%m-%d", "%b %d %Y", "%B %d, %Y")


def of_the_week_before(found: Trajectory) -> Trajectory:
    """The recording as it would be had it been made a week before."""
    today = found.calls[0].times.received
    moved: list[Any] = []
    for call in found.calls:
        messages = json.dumps(call.messages)
        for days in (0, 1):  # the run may go past midnight
            day: datetime = today + timedelta(days)
            for form in DAYS:
                messages = re.sub(re.escape(day.strftime(form)), (day - timedelta(7)).strftime(form), messages)
        moved.append(call.model_copy(update={"messages": json.loads(messages)}))
    return Trajectory(found.rollout, found.session, moved, found.sessions)


@pytest.mark.parametrize("harness", EVERY, indirect=True)
async def test_it_is_branched_at_its_last_turn_a_week_later(harness: str, play: Play) -> None:
    first = await play(harness)
    assert first.report.ok, first.told()
    recorded, calls = of_the_week_before(first.found), len(first.found.calls)
    again = await play(harness, engine=ReplayEngine(recorded, calls=calls - 1, then=ToyModel()))
    assert again.record.failure is None, again.told()
    assert (again.record.stop, again.record.reward) == ("submitted", 1.0), again.told()
    assert [call.engine for call in again.found.calls] == ["replay"] * (calls - 1) + ["script"]
    found = reproduced(recorded, again.found)
    assert (found.same, found.difference) == (calls, None)
    if harness in DATED:
        assert reproduced(recorded, again.found, exact=True).same == 0, "it told another day"
    but_for = {cause for call in again.found.calls for cause in call.replayed_but_for}
    assert ("chance" in but_for) == (harness in CHANCE), but_for
    live = again.found.calls[-1]
    before = recorded.prompt_ids(recorded.calls[-2].id) or []
    assert (again.found.prompt_ids(live.id) or [])[: len(before)] == before
    assert sum(sum(sample.mask) for sample in to_samples(again.found)) == len(live.sampled_ids or ())
