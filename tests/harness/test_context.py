"""A context that overflows, one that is compacted, and sub-agents at once: the record keeps apart what is not one."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.harness.conftest import EVERY, Play, said, trained_once
from tests.harness.scripts import SUBANSWER, Delegating, Heavy, Overflowing, delegating

from orchard.harness import check as toy
from orchard.rollout.toy_model import ToyModel
from orchard.trajectories import to_samples

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Compacting:
    """How a harness is made to compact."""

    config: dict[str, Any] = field(default_factory=dict[str, Any])
    tokens: int = 0
    """What the second prompt is said to hold; 0: nothing has to be said."""


IN_SCENES = ("claude-code", "codex", "opencode", "pi")
"""Held to the same in ``test_scenes``."""
OTHERS = [name for name in EVERY if name not in (*IN_SCENES, "command")]
COMPACTING = {"kimi-code": Compacting({"context": 131_072}, 128_000)}
SUBAGENTS: dict[str, dict[str, Any]] = {
    "hermes-agent": {"toolsets": ["terminal", "file", "delegation"]}, "kimi-code": {},
    "openhands": {"subagents": 2},
}  # fmt: skip
"""Harnesses whose sub-agents work at the same time, and their options for that."""


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


@pytest.mark.parametrize("harness", sorted(set(COMPACTING) & set(EVERY)), indirect=True)
async def test_a_compaction_is_marked_and_not_trained(harness: str, play: Play) -> None:
    how = COMPACTING[harness]
    ran = await play(harness, engine=Heavy(ToyModel(), how.tokens), config=how.config)
    purposes = Counter(call.purpose for call in ran.found.calls if call.status == "ok")
    assert purposes["compaction"] >= 1, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    trained_once(ran)
    compactions = {call.id for call in ran.found.calls if call.purpose == "compaction"}
    assert not compactions & {identity for sample in to_samples(ran.found) for identity in sample.calls}


@pytest.mark.parametrize("harness", sorted(set(SUBAGENTS) & set(EVERY)), indirect=True)
async def test_sub_agents_at_once_are_conversations_of_their_own(harness: str, play: Play) -> None:
    engine = Delegating(ToyModel(delegating))
    ran = await play(harness, engine=engine, config=SUBAGENTS[harness])
    assert engine.both.is_set(), ran.told()
    beside = [branch for branch in ran.found.branches() if branch.leaf.purpose == "subagent"]
    assert [(branch.leaf.answer or {}).get("content") for branch in beside] == [SUBANSWER] * 2, ran.told()
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    main = [branch for branch in ran.found.branches() if branch.leaf.purpose == "agent"][-1]
    assert [text for text in said(ran, main) if text in toy.SAYS] == list(toy.SAYS), ran.told()
    trained_once(ran)
