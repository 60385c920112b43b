"""Finding out, by running, which tests tell the two releases apart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchard.core.errors import TaskRefused
from orchard.core.tasks import unwrapped
from orchard.sandbox import Orchard
from orchard.tasks.boxes import bounds
from orchard.tasks.junit import GOOD, Case, Status
from orchard.tasks.model import TaskLimits
from orchard.tasks.suite import Outcome, Suite, run_suite

_RUNS = 2  # of each side: a test that changes its mind between two runs of the same code is no signal
_NAMED = 8  # tests named in a message


@dataclass(frozen=True)
class Sides:
    """What is compared."""

    image: str
    """Digest: the old tree, installed."""
    test_files: Mapping[str, bytes]
    deleted_tests: tuple[str, ...]
    gold_patch: str
    limits: TaskLimits


@dataclass(frozen=True)
class Signal:
    """The tests that make the verdict, sorted."""

    fail_to_pass: list[str]
    pass_to_pass: list[str]


async def discover(orchard: Orchard, sides: Sides, suite: Suite) -> Signal:
    """Run the new tests on the old code and on the fixed code, each twice in a fresh sandbox, and compare.

    Raises:
        TaskRefused: ``collection_error``, ``gold_fails``, ``no_fail_to_pass`` or ``unstable``; ``detail`` has the log.
        OrchardError: infrastructure trouble.
    """
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(_run(orchard, sides, suite, fixed)) for _ in range(_RUNS) for fixed in (False, True)
            ]
    outcomes = [run.result() for run in runs]
    before, after = outcomes[0::2], outcomes[1::2]
    return compare(*(agreed(side, what) for side, what in ((before, "the old code"), (after, "the fixed code"))))


async def _run(orchard: Orchard, sides: Sides, suite: Suite, fixed: bool) -> Outcome:
    async with orchard.sandbox(sides.image, network="none", **await bounds(orchard, sides.limits)) as box:
        for path, data in sides.test_files.items():
            await box.files.write(f"{suite.workdir}/{path}", data)
        for path in sides.deleted_tests:
            await box.files.remove(f"{suite.workdir}/{path}", missing_ok=True)
        if fixed:
            await box.apply_patch(sides.gold_patch, cwd=suite.workdir)
        return await run_suite(box, suite)


def agreed(outcomes: Sequence[Outcome], what: str) -> Mapping[str, Case]:
    """Return the cases of the first run if every run agrees on every verdict.

    Raises:
        TaskRefused: ``collection_error`` or ``unstable``; ``what`` says on which code.
    """
    reports: list[Mapping[str, Case]] = []
    for outcome in outcomes:
        if outcome.cases is None:
            raise TaskRefused(f"on {what}: {outcome.distrust}", reason="collection_error", detail=outcome.log)
        uncollected = [case.id for case in outcome.cases.values() if "::" not in case.id]
        if uncollected or not outcome.cases:
            what_not = _some(uncollected) or "any test"
            raise TaskRefused(
                f"on {what}, pytest cannot collect {what_not}", reason="collection_error", detail=outcome.log
            )
        reports.append(outcome.cases)
    verdicts = [{name: case.status for name, case in report.items()} for report in reports]
    changed = {name for one in verdicts[1:] for name in {*one, *verdicts[0]} if one.get(name) != verdicts[0].get(name)}
    if changed:
        raise TaskRefused(f"on {what}, {_some(changed)} changed between two runs", reason="unstable")
    return reports[0]


def compare(before: Mapping[str, Case], after: Mapping[str, Case]) -> Signal:
    """Return which tests the fix turns from failing to passing, and which pass on both sides.

    Raises:
        TaskRefused: a test fails after the fix (``gold_fails``), or none fails before it (``no_fail_to_pass``).
    """
    failing = [case for case in after.values() if case.status in {Status.FAILED, Status.ERROR}]
    if failing:
        raise TaskRefused(
            f"with the newer release's code, {_some(case.id for case in failing)} still fail",
            reason="gold_fails", detail="\n".join(case.message for case in failing[:_NAMED]),
        )  # fmt: skip
    good = {name for name, case in after.items() if case.status in GOOD}
    fixed = sorted(name for name in good if name not in before or before[name].status in {Status.FAILED, Status.ERROR})
    if not fixed:
        raise TaskRefused("no test fails on the old code and passes on the new", reason="no_fail_to_pass")
    kept = sorted(name for name in good - set(fixed) if before[name].status in GOOD)
    return Signal(fixed, kept)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
