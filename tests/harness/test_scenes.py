"""Sub-agents at once, a compaction, a full context, a spent budget: the record is right each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.harness.conftest import Play, Ran
from tests.support.scenes import BOTH, FULL, SHARES, Gate, Scene, summing_up, two_helpers

from orchard.gateway import ContextOverflow
from orchard.harness import check as toy

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

SPAWNS: Mapping[str, tuple[Any, ...]] = {
    "claude-code": ("Agent", lambda told: {"description": "a share", "prompt": told}),
    "codex": ("multi_agent_v1__spawn_agent", lambda told: {"message": told}, "multi_agent_v1__wait_agent"),
    "opencode": ("task", lambda told: {"description": "a share", "prompt": told, "subagent_type": "general"}),
}
"""Harnesses with sub-agents: the tool that starts one, its arguments, the tool that waits for them."""
COMPACTIONS: Mapping[str, tuple[dict[str, Any], dict[int, str | int]]] = {
    "claude-code": ({}, {2: FULL}),
    "codex": ({"context": 10_000, "compact_at": 8_000}, {1: 9_000}),
    "opencode": ({"context": 100_000, "output": 4_096}, {1: 99_000}),
    "pi": ({"settings": {"compaction": {"keepRecentTokens": 1}}}, {1: 130_000}),
}
"""Harnesses that compact: their options, and what makes them do it."""
INSIDE = ("claude-code", "codex", "opencode", "pi")


def words(ran: Ran, purpose: str) -> list[list[str]]:
    """Return what the model says in each conversation of a purpose, from its first answer to its last."""
    branches = [branch for branch in ran.found.branches() if branch.leaf.purpose == purpose]
    return [[str((call.answer or {}).get("content")) for call in branch.calls] for branch in branches]


@pytest.mark.parametrize("harness", SPAWNS, indirect=True)
async def test_sub_agents_at_once_are_conversations_of_their_own(harness: str, play: Play) -> None:
    ran = await play(harness, engine=Scene(two_helpers(*SPAWNS[harness]), when=Gate()))
    assert ran.record.failure is None, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    assert sorted(words(ran, "subagent")) == [[f"{name} begins.", f"{name} is done."] for name in SHARES], ran.told()
    [main] = words(ran, "agent")
    assert (main[0], main[-1]) == ("I ask two helpers.", BOTH), ran.told()
    shells = [tool for tool in ran.record.tools if toy.RIGHT in str(tool.arguments)]
    assert [(tool.error, tool.exit_code) for tool in shells] in ([(None, 0)], [(None, None)]), ran.record.tools


@pytest.mark.parametrize("harness", COMPACTIONS, indirect=True)
async def test_a_compaction_is_a_call_beside_and_work_goes_on_from_it(harness: str, play: Play) -> None:
    config, events = COMPACTIONS[harness]
    ran = await play(harness, engine=Scene(summing_up, events), config=config)
    assert ran.record.failure is None, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    assert [call.purpose for call in ran.found.calls if call.purpose != "agent"] == ["compaction"], ran.told()
    every = [said for purpose in ("agent", "compaction") for said in words(ran, purpose)]
    assert any(said[:2] == list(toy.SAYS[:2]) for said in every), ran.told()
    assert sum(said[-1] == toy.SAYS[3] for said in words(ran, "agent")) == 1, ran.told()
    refused = [call.error_code for call in ran.found.calls if call.status != "ok"]
    assert refused == ([ContextOverflow.code] if FULL in events.values() else []), ran.told()


@pytest.mark.parametrize("harness", INSIDE, indirect=True)
async def test_a_context_that_stays_full_is_the_models_outcome(harness: str, play: Play) -> None:
    ran = await play(harness, engine=Scene(toy.answer, dict.fromkeys(range(2, 99), FULL)))
    assert (ran.record.failure, ran.record.stop) == (None, "context"), ran.told()
    assert words(ran, "agent") == [list(toy.SAYS[:2])], ran.told()
    assert {call.error_code for call in ran.found.calls if call.status != "ok"} == {ContextOverflow.code}, ran.told()
    assert ran.record.reward == 1.0, "what was done until then is graded"
