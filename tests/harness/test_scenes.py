"""Sub-agents at once, a compaction, a full context, a spent budget: the record is right each time."""

from __future__ import annotations

import pytest
from tests.harness.conftest import Play, Ran, trained_once
from tests.support.scenes import BOTH, COMPACTIONS, FULL, GATEWAY, SHARES, STAYS_FULL, SUBAGENTS, SUMMARY

from orchard.gateway import ContextOverflow
from orchard.harness import check as toy
from orchard.harness.registry import HARNESSES
from orchard.trajectories import WORK, to_samples

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

WITHOUT_TOOLS = ("pi",)
"""Harnesses that tell nothing of the tool calls of sub-agents: those of pi are processes that keep no session."""
INSIDE = ("claude-code", "codex", "opencode", "pi")


def words(ran: Ran, purpose: str) -> list[list[str]]:
    """Return what the model says in each conversation of a purpose, from its first answer to its last."""
    branches = [branch for branch in ran.found.branches() if branch.leaf.purpose == purpose]
    return [[str((call.answer or {}).get("content")) for call in branch.calls] for branch in branches]


@pytest.mark.parametrize("harness", SUBAGENTS, indirect=True)
async def test_sub_agents_at_once_are_conversations_of_their_own(harness: str, play: Play) -> None:
    scene = SUBAGENTS[harness]
    ran = await play(harness, engine=scene.engine(), config=scene.config)
    assert ran.record.failure is None, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    assert sorted(words(ran, "subagent")) == [[f"{name} begins.", f"{name} is done."] for name in SHARES], ran.told()
    [main] = words(ran, "agent")
    assert main[-1] == BOTH, ran.told()
    assert "I ask two helpers." in main[:2], ran.told()
    trained_once(ran)
    shells = [tool for tool in ran.record.tools if toy.RIGHT in str(tool.arguments)]
    known = [(None, tool.exit_code) for tool in shells if tool.exit_code in (None, 0)]
    assert [(tool.error, tool.exit_code) for tool in shells] == known, ran.record.tools
    assert len(shells) == (harness not in WITHOUT_TOOLS), ran.record.tools


@pytest.mark.parametrize("harness", ["openclaw"], indirect=True)
async def test_sub_agents_of_openclaw_work_with_its_own_gateway(
    harness: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HARNESSES, harness, "tests.support.openclaw_gateway:WithGateway")
    ran = await play(harness, engine=GATEWAY.engine(), config=GATEWAY.config)
    assert ran.record.failure is None, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    said = {purpose: sorted({text for words_ in words(ran, purpose) for text in words_}) for purpose in WORK}
    assert said["subagent"] == sorted(f"{name} {what}" for name in SHARES for what in ("begins.", "is done."))
    assert said["agent"] == sorted([BOTH, "I ask two helpers.", "I wait for Ada."]), ran.told()
    assert {call.purpose for call in ran.found.calls} == set(WORK), ran.told()
    trained_once(ran)


@pytest.mark.parametrize("harness", COMPACTIONS, indirect=True)
async def test_a_compaction_is_a_call_beside_and_work_goes_on_from_it(harness: str, play: Play) -> None:
    scene = COMPACTIONS[harness]
    ran = await play(harness, engine=scene.engine(), config=scene.config)
    assert ran.record.failure is None, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    beside = [call for call in ran.found.calls if call.purpose != "agent"]
    assert [call.purpose for call in beside] == ["compaction"], ran.told()
    assert SUMMARY in str(beside[0].answer), ran.told()
    every = [said for purpose in ("agent", "compaction") for said in words(ran, purpose)]
    assert any(said[:2] == list(toy.SAYS[:2]) for said in every), ran.told()
    assert sum(said[-1] == toy.SAYS[3] for said in words(ran, "agent")) == 1, ran.told()
    trained_once(ran)
    assert beside[0].id not in {identity for sample in to_samples(ran.found) for identity in sample.calls}
    refused = [call.error_code for call in ran.found.calls if call.status != "ok"]
    assert refused == ([ContextOverflow.code] if FULL in scene.events.values() else []), ran.told()


@pytest.mark.parametrize("harness", INSIDE, indirect=True)
async def test_a_context_that_stays_full_is_the_models_outcome(harness: str, play: Play) -> None:
    ran = await play(harness, engine=STAYS_FULL.engine())
    assert (ran.record.failure, ran.record.stop) == (None, "context"), ran.told()
    assert words(ran, "agent") == [list(toy.SAYS[:2])], ran.told()
    assert {call.error_code for call in ran.found.calls if call.status != "ok"} == {ContextOverflow.code}, ran.told()
    assert ran.record.reward == 1.0, "what was done until then is graded"


@pytest.mark.parametrize("harness", ["zeroclaw"], indirect=True)
async def test_last_words_at_a_limit_of_its_own_are_the_agents(harness: str, play: Play) -> None:
    limit = {"settings": {"runtime_profiles": {"orchard": {"max_tool_iterations": 2}}}}
    ran = await play(harness, config=limit)
    assert (ran.record.failure, ran.record.stop) == (None, "turns"), ran.told()
    assert [call.tools_hash is None for call in ran.found.calls] == [False, False, True], ran.told()
    assert {call.purpose for call in ran.found.calls} == {"agent"}, ran.told()
    trained_once(ran)
