"""The ``tests`` grader: the task's own tests on the attempt's patch, in a fresh sandbox.

From the task's image: the patch; then what the attempt may not decide on is put back, the tests laid over it, and the
named tests in pytest's junit report make the verdict. Score 1 if all hold, else 0. Its limit: code under test runs in
the same process as pytest, so code written against this very grader could still lie; what generic tricks do shows in
the report or in the missing one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchard.core.errors import FileError, InvalidArgument, OrchardError, PatchFailed
from orchard.core.validation import first_fault
from orchard.rewards.guard import Undone, guard, restore
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.verdict import judge
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.patch import Changed, apply_patch
from orchard.tasks.boxes import bounds
from orchard.tasks.model import GraderSpec, Task, TestPlan
from orchard.tasks.suite import Outcome, Suite, run_suite

NAME = "tests"
_MACHINES_FAULT = frozenset({"ENOSPC", "EDQUOT", "EIO"})  # any other errno is the patch's: a folder in its way …
_SLACK = 300.0  # seconds a grading sandbox lives beyond the tests' own time-out


@dataclass
class _Run:
    """What is known so far."""

    changed: Changed = field(default_factory=Changed)
    undone: Undone = field(default_factory=Undone)
    outcome: Outcome | None = None


class TestsGrader:
    """See the module."""

    __test__ = False

    async def grade(self, task: Task, spec: GraderSpec, attempt: Attempt, orchard: Orchard) -> Reward:
        """Return score 0 or 1 with a verdict per test, or *missing* where infrastructure left it open.

        Raises:
            InvalidArgument: the task has no usable plan under ``secret["tests"]``.
        """
        plan = plan_of(task)
        run = _Run()
        try:
            await _try(orchard, task, plan, attempt.patch, run)
        except PatchFailed as error:
            return Reward(NAME, 0.0, evidence={"reason": "patch_failed", "detail": error.detail or str(error)})
        except OrchardError as error:
            return Reward(NAME, None, missing=f"{error.code}: {error}", evidence=_facts(run))
        assert run.outcome is not None
        passed, tests = judge(plan, run.outcome.cases)
        evidence = {**_facts(run), "tests": tests}
        if run.outcome.cases is None and attempt.gold:
            return Reward(NAME, None, missing=f"no verdict even on gold: {run.outcome.distrust}", evidence=evidence)
        return Reward(NAME, 1.0 if passed else 0.0, evidence=evidence)


def plan_of(task: Task) -> TestPlan:
    """Return the task's plan.

    Raises:
        InvalidArgument: it has none, or a broken one.
    """
    try:
        return TestPlan.model_validate(task.secret.get(NAME))
    except ValidationError as error:
        where, words = first_fault(error.errors())
        key = f"secret.{NAME}.{where}" if where else f"secret.{NAME}"
        raise InvalidArgument(f"task {task.id}: {key}: {words}", field=key) from error


async def _try(orchard: Orchard, task: Task, plan: TestPlan, patch: bytes, run: _Run) -> None:
    limits = task.limits
    seconds = limits.grade_seconds + _SLACK
    async with orchard.sandbox(task.image, network="none", ttl=seconds, **await bounds(orchard, limits)) as box:
        run.outcome = await _in_box(box, task, plan, patch, run)


async def _in_box(box: Sandbox, task: Task, plan: TestPlan, patch: bytes, run: _Run) -> Outcome:
    before = await guard(box, task.workdir)
    run.changed = await lay(box, patch, task.workdir)
    run.undone = await restore(box, before, plan)
    files = {name.partition("::")[0] for name in (*plan.fail_to_pass, *plan.pass_to_pass)}
    return await run_suite(box, Suite(plan.roots, task.workdir, plan.python, files, task.limits.grade_seconds))


async def lay(box: Sandbox, patch: bytes, workdir: str) -> Changed:
    """Apply an attempt's patch in a grader's sandbox.

    Raises:
        PatchFailed: it does not apply, or does not fit what lies there: the attempt's fault.
        FileError: the machine's.
    """
    try:
        return await apply_patch(box.files, patch, workdir, 1)
    except FileError as error:
        if error.errno_name in _MACHINES_FAULT:
            raise
        raise PatchFailed("the patch does not fit what lies there", detail=str(error)) from error


def _facts(run: _Run) -> Mapping[str, Any]:
    facts: dict[str, Any] = {
        "changed": list(run.changed), "applied_by": run.changed.how, "restored": run.undone.restored,
        "removed": run.undone.removed,
    }  # fmt: skip
    if run.outcome is not None:
        outcome = run.outcome
        facts |= {
            "reason": "no_report" if outcome.cases is None else None, "distrust": outcome.distrust or None,
            "exit_code": outcome.exit_code, "signal": outcome.signal, "timed_out": outcome.timed_out,
            "oom_killed": outcome.oom_killed, "seconds": outcome.seconds, "log": outcome.log,
        }  # fmt: skip
    return facts
