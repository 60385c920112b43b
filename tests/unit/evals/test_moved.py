"""A model server may move between two runs of one folder: that is told, and kept with each rollout."""

from collections.abc import Callable
from pathlib import Path

from orchard.evals.run import Plan, moved
from orchard.rollout.closing import Progress, closing_record
from orchard.rollout.folder import open_run
from orchard.rollout.jobs import Job
from orchard.rollout.policies import model_policy, policy
from orchard.tasks.registry import load_tasks
from orchard.trajectories import RolloutRecord

EXAMPLE = str(Path(__file__).parents[3] / "examples/tasks/slug-keeps-digits")


async def test_a_resume_at_another_model_server_says_so(
    tmp_path: Path, make_record: Callable[..., RolloutRecord]
) -> None:
    source = load_tasks(EXAMPLE)[0]

    def plan(url: str) -> Plan:
        return Plan([source], ["bash-loop"], [model_policy(url, "m", "sk-1"), policy("gold")], tmp_path / "run")

    first = plan("http://user:secret@10.0.0.1:8000/v1/?token=secret")
    assert moved(first) == []
    assert not first.folder.exists()
    with open_run(first.folder) as run:
        for attempt in range(2):
            for one in first.policies:
                await run.store.append(closing_record(run.id, Progress(Job(source, "bash-loop", one, attempt))))
        labels = [record.labels for record in run.records() if record.policy == "m"]
    assert labels == [{"model_server": "http://10.0.0.1:8000/v1"}] * 2, "no secret is kept"
    assert moved(plan("http://10.0.0.1:8000/v1")) == []
    (line,) = moved(plan("http://10.0.0.2:8000/v1"))
    assert line == "m answers at http://10.0.0.2:8000/v1 now; of its rollouts in this run 2 at http://10.0.0.1:8000/v1"
