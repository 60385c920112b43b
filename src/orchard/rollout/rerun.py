"""Running a rollout again with its recorded answers: at how many of its turns a harness comes to be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchard.gateway import Gateway, ReplayEngine
from orchard.gateway.engines.replay import Reproduced, reproduced
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import RunFolder
from orchard.rollout.jobs import Bounds, Job, Observe
from orchard.rollout.policies import Policy
from orchard.sandbox import Orchard

REPLAY = "replay"
"""The name under which the run keeps the second rollout's answers."""


@dataclass(frozen=True)
class Rerun:
    """What a second run came to."""

    exact: Reproduced
    """As far as its requests said the same."""
    pinned: Reproduced
    """As far as they were answered: with the clock, and what is chance, as they were recorded."""
    but_for: Sequence[str]
    """Which of ``clock`` and ``chance`` wrote other words."""


async def rerun(
    run: RunFolder, orchard: Orchard, gateway: Gateway, job: Job, observe: Observe = lambda _: None
) -> Rerun:
    """Run a closed job once more in a new sandbox, answered from its record; the run keeps that rollout too.

    Raises:
        MachineUnfit: the machine makes no sandboxes.
    """
    recorded = run.store.trajectory(job.rollout_id(run.id))
    policy = Policy(REPLAY, job.policy.model, lambda task: ReplayEngine(recorded))
    again = replace(job, policy=policy)
    await RolloutEngine(run, orchard, gateway, Bounds(tries=1), observe).run([again])
    found = run.store.trajectory(again.rollout_id(run.id))
    causes = sorted({cause for call in found.calls for cause in call.replayed_but_for})
    return Rerun(reproduced(recorded, found, exact=True), reproduced(recorded, found), causes)
