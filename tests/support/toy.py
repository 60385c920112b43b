"""A task that takes no time, for what the rollout engine does with tasks; also a program that runs many of them.

``python toy.py FOLDER HOME COUNT QUICK`` runs COUNT tasks on the local backend whose home is HOME, at all but the first
QUICK of which an agent sleeps for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchard.cli.console import run_async
from orchard.core.errors import Unavailable
from orchard.evals.run import Plan, evaluate
from orchard.gateway import ScriptEngine, bash_step
from orchard.harness.protocol import SUBMIT_MARKER, HarnessRequest, HarnessResult, Stop
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.registry import GRADERS
from orchard.rollout.jobs import Bounds, Event
from orchard.rollout.policies import Policy
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.tasks.model import GraderSpec, Task, TaskLimits

WORKDIR = "/srv"


@dataclass(frozen=True)
class Toy:
    """A task whose patch must say ``mended``."""

    id: str
    limits: TaskLimits = field(default_factory=lambda: TaskLimits(turns=5, seconds=60, command_seconds=30))

    async def prepare(self, orchard: Orchard) -> Task:
        return Task(
            id=self.id, kind="toy", instruction="Write it down.", image="host", workdir=WORKDIR, limits=self.limits,
            graders=[GraderSpec(type="patch-says")],
        )  # fmt: skip


class PatchSays:
    """Grades by the patch alone; ``away`` is how often it fails first, over all its uses."""

    away = 0

    async def grade(self, task: Task, spec: GraderSpec, attempt: Attempt, orchard: Orchard) -> Reward:
        if PatchSays.away > 0:
            PatchSays.away -= 1
            raise Unavailable("the grader is away")
        return Reward(spec.type, float(b"+mended" in attempt.patch), evidence={"bytes": len(attempt.patch)})


class Flaky:
    """Breaks on its first use, then mends; or always."""

    name = "flaky"
    placement: Literal["beside"] = "beside"
    needs: Sequence[str] = ()
    uses, always = 0, False

    def check(self, config: Mapping[str, Any]) -> None: ...

    async def version(self) -> str:
        return "7"

    async def install(self) -> None: ...

    async def tools(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...

    async def run(self, request: HarnessRequest) -> HarnessResult:
        Flaky.uses += 1
        if Flaky.always or Flaky.uses == 1:
            raise Unavailable("the agent's server is away")
        await request.box.run("echo mended > note", cwd=request.workdir)
        return HarnessResult(Stop.SUBMITTED)


def scripted(name: str, *commands: str) -> Policy:
    """A policy that runs ``commands``, then submits."""
    engine = ScriptEngine([bash_step(command) for command in [*commands, f"echo {SUBMIT_MARKER}"]])
    return Policy(name, "script", lambda task: engine)


MEND = scripted("mend", "echo mended > note")
IDLE = scripted("idle")


def register() -> None:
    GRADERS["patch-says"] = PatchSays


def plan(folder: Path, count: int, *policies: Policy) -> Plan:
    toys = [Toy(f"toy-{number}") for number in range(count)]
    return Plan(toys, ["bash-loop"], policies, folder, bounds=Bounds(run=2, grade=1, pause=0.05), validate=False)


def tell(event: Event) -> None:
    sys.stdout.write(f"{event.kind} {event.job.title}\n")
    sys.stdout.flush()


def stuck(task: Task, quick: int) -> ScriptEngine:
    """A model that mends the first ``quick`` toys, and sleeps at the others."""
    rest = "true" if int(task.id.removeprefix("toy-")) < quick else "sleep 1000"
    return ScriptEngine([bash_step(command) for command in ("echo mended > note", rest, f"echo {SUBMIT_MARKER}")])


async def main(folder: Path, home: Path, count: int, quick: int) -> None:
    register()
    backend = LocalBackend(LocalSettings(home=home))
    try:
        async with Orchard(backend=backend) as orchard:
            await evaluate(
                plan(folder, count, Policy("slow", "script", lambda task: stuck(task, quick))), orchard, tell
            )
    finally:
        await backend.close()


if __name__ == "__main__":
    run_async(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
