"""A benchmark run: validate the tasks, make the rollouts, report."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchard.core.errors import InvalidArgument
from orchard.evals.page import write_page
from orchard.evals.report import Report, build_report
from orchard.evals.validate import verdicts
from orchard.gateway import Gateway
from orchard.harness.registry import create_harness
from orchard.rollout.closing import SERVER
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import RunFolder, open_run, read_run
from orchard.rollout.jobs import Bounds, Job, Observe
from orchard.rollout.policies import GOLD, NOOP, Policy, policy
from orchard.sandbox import Orchard
from orchard.tasks.protocol import TaskSource


@dataclass(frozen=True)
class Plan:
    """What is to be evaluated. The same plan on the same folder resumes; a larger one adds to it."""

    sources: Sequence[TaskSource]
    harnesses: Sequence[str]
    policies: Sequence[Policy]
    folder: Path
    attempts: int = 1
    title: str = "Evaluation"
    bounds: Bounds = field(default_factory=Bounds)
    validate: bool = True
    """Let a gold and an empty run prove each task first; a task they do not prove is given to no model."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Harness -> its options."""
    training: bool = False
    """Make the models' rollouts to be trained on: drawn from their own distributions, with token ids, or refused."""
    retry_broken: bool = False
    """Run again the rollouts that infrastructure broke for good when the run was made."""

    def checked(self) -> Plan:
        """Return self.

        Raises:
            InvalidArgument: a harness that there is not, options that it does not take or that are for another,
                nothing to do, or a name twice.
        """
        for name in self.harnesses:
            driver = create_harness(name)
            for one in self.policies:
                driver.check(self.options(name, one))
        stray = sorted(set(self.config) - set(self.harnesses))
        if stray:
            hint = f"its harnesses are {', '.join(self.harnesses)}"
            raise InvalidArgument(
                f"options for {', '.join(stray)}, which the plan does not use", field="option", hint=hint
            )
        names, tasks = [one.name for one in self.policies], [one.id for one in self.sources]
        if not self.sources or not self.harnesses or not self.policies or self.attempts < 1:
            raise InvalidArgument("an evaluation needs tasks, a harness, a policy and an attempt", field="plan")
        if self.training and all(one.script for one in self.policies):
            raise InvalidArgument("nobody learns what a script says: training needs a model", field="training")
        for kind, given in (("task", tasks), ("harness", self.harnesses), ("policy", names)):
            if twice := sorted({name for name in given if given.count(name) > 1}):
                raise InvalidArgument(f"{kind} {', '.join(twice)} is named more than once", field="plan")
        return self

    def jobs(self) -> Iterator[Job]:
        """Yield every job, attempt by attempt, so that an early look sees all tasks."""
        for attempt in range(self.attempts):
            for source in self.sources:
                for harness in self.harnesses:
                    for one in self.policies:
                        yield self._job(source, harness, one, attempt)

    def proofs(self) -> Iterator[Job]:
        """Yield the gold and the empty run of each task, under the first harness that scripts can drive."""
        harness = next((name for name in self.harnesses if name != "command"), "bash-loop")
        for source in self.sources:
            for name in (GOLD, NOOP):
                yield self._job(source, harness, policy(name), 0)

    def first(self) -> list[Job]:
        """Return the jobs to run before any other: the proofs, unless the plan has them and nobody relies on them."""
        names = {one.name for one in self.policies}
        relied_on = any(one.expect is None for one in self.policies) or not {GOLD, NOOP} <= names
        return list(self.proofs()) if self.validate and relied_on else []

    def total(self) -> int:
        """Return the number of different jobs."""
        return len({job.rollout_id("") for jobs in (self.first(), self.jobs()) for job in jobs})

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what decides the results beside the tasks, as ``Facts.hold`` takes it."""
        harnesses = {f"harness {name}": {"options": dict(self.config.get(name, {}))} for name in self.harnesses}
        policies = {
            f"policy {one.name}": {"model": one.model, "sampling": dict(one.sampling), "script": one.script}
            for one in self.policies
        }
        return harnesses | policies | {"run": {"training": self.training}}

    def options(self, harness: str, one: Policy) -> dict[str, Any]:
        """Return what ``harness`` is given when ``one`` answers it."""
        return dict(self.config.get(harness, {})) | ({"sampling": dict(one.sampling)} if one.sampling else {})

    def _job(self, source: TaskSource, harness: str, one: Policy, attempt: int) -> Job:
        training = self.training and not one.script
        return Job(source, harness, one, attempt, self.options(harness, one), training)


async def evaluate(plan: Plan, orchard: Orchard, observe: Observe = lambda _: None) -> Report:
    """Run ``plan`` to its end, write ``report.json`` and ``report.html`` into its folder, return the report.

    Raises:
        Conflict: another process works on the folder, or it holds rollouts made with other settings.
        InvalidArgument: the plan is wrong.
        StoreFailed: a record could not be written; the same plan again goes on from there.
    """
    start = time.monotonic()
    plan = plan.checked()
    with open_run(plan.folder) as folder:
        async with Gateway(folder.store, {}) as gateway:
            engine = RolloutEngine(folder, orchard, gateway, plan.bounds, observe)
            folder.facts.hold(plan.facts())
            await engine.unchanged(plan.sources)
            proofs = plan.first()
            if proofs:
                await engine.run(proofs, ahead=proofs, retry_broken=plan.retry_broken)
            refused = {one.task for one in verdicts(folder.records()).values() if not one.ok} if proofs else set[str]()
            done = {job.rollout_id("") for job in proofs}

            def rest() -> Iterator[Job]:
                return (job for job in plan.jobs() if job.source.id not in refused and job.rollout_id("") not in done)

            await engine.run(rest(), ahead=rest(), retry_broken=plan.retry_broken)
        return _report(folder, plan.title, time.monotonic() - start, validated=plan.validate)


def moved(plan: Plan) -> list[str]:
    """Return a line for each policy that rollouts of the run were made with at another model server than now.

    Servers move, so that is no reason to refuse; who reads the numbers must know.
    """
    if not (plan.folder / "run.json").is_file():
        return []
    lines: list[str] = []
    with read_run(plan.folder) as run:
        for one in plan.policies:
            rows = run.store.rollouts("run = ? AND policy = ?", [run.id, one.name]) if one.server else ()
            count = Counter(row.labels.get(SERVER, one.server) for row in rows)
            others = [f"{number} at {server}" for server, number in count.items() if server != one.server]
            if others:
                lines.append(f"{one.name} answers at {one.server} now; of its rollouts in this run {', '.join(others)}")
    return lines


def report_on(folder: Path, title: str | None = None, *, validated: bool = True) -> Report:
    """Report again on a run that is there, finished or not; writes the same files.

    Args:
        folder: of the run.
        title: that of its last report by default.
        validated: leave out tasks that no gold and empty run proves.

    Raises:
        InvalidArgument: there is none.
    """
    if title is None:
        title = str(_last(folder).get("title", "Evaluation"))
    with read_run(folder) as run:
        return _report(run, title, 0.0, validated=validated)


def _last(folder: Path) -> dict[str, Any]:
    """Return the report that is there, or nothing: it is written anew from the records, also where it is broken."""
    with suppress(FileNotFoundError, ValueError):
        found = json.loads((folder / "report.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def _report(folder: RunFolder, title: str, seconds: float, *, validated: bool) -> Report:
    seconds += float(_last(folder.path).get("seconds", 0.0))
    report = build_report(folder.id, title, folder.records(), seconds=seconds, validated=validated)
    report.write_json(folder.path / "report.json")
    write_page(folder.path / "report.html", report, folder.store)
    return report
