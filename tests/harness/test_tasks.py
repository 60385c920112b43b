"""A real bug of a real library under harnesses of each kind: scripted agents act through any shell they are given."""

from pathlib import Path

import pytest

from orchard.evals.run import Plan, evaluate
from orchard.harness.registry import HARNESSES
from orchard.rollout.folder import read_run
from orchard.rollout.policies import policy
from orchard.sandbox import Orchard
from orchard.tasks.registry import load_tasks

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]
TASK = "xmltodict@0.14.1..0.14.2"
CHOSEN = sorted({"claude-code", "codex", "openclaw", "openhands"} & set(HARNESSES))


@pytest.mark.parametrize("harness", CHOSEN, indirect=True)
async def test_gold_solves_a_release_pair_and_an_idle_agent_does_not(
    harness: str, orchard: Orchard, debian_image: str, tmp_path: Path
) -> None:
    sources = load_tasks("release-pair:known", only=[TASK], image=debian_image)
    plan = Plan(sources, [harness], [policy("gold"), policy("noop")], tmp_path / "run", validate=False)
    await evaluate(plan, orchard)
    with read_run(tmp_path / "run") as run:
        records = list(run.records())
        assert {(record.policy, record.reward) for record in records} == {("gold", 1.0), ("noop", 0.0)}, [
            (record.policy, record.stop, record.stop_detail, record.failure) for record in records
        ]
        for record in records:
            found = run.store.trajectory(record.id)
            assert {call.status for call in found.calls} == {"ok"}
            assert len([branch for branch in found.branches() if branch.leaf.purpose == "agent"]) >= 1
            assert run.native(record), "its own file is joined to the record"
            assert record.stop == "submitted"
