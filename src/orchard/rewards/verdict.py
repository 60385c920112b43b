"""From a report to a verdict: every named test must hold; nothing else counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchard.tasks.junit import GOOD, Case, Status
from orchard.tasks.model import TestPlan


def holds(status: Status, *, must_change: bool) -> bool:
    """True if a named test is as it must be.

    A test that the fix turns must pass (or fail as it says it should); one that must be kept may also be skipped.
    Missing is never enough.
    """
    return status in GOOD or (status is Status.SKIPPED and not must_change)


def judge(plan: TestPlan, cases: Mapping[str, Case] | None) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether every named test holds, and the evidence per test, those that do not hold first.

    Args:
        plan: names the tests.
        cases: the report by id; None: there is none, and every test is missing.
    """
    evidence: list[dict[str, Any]] = []
    for group, names in (("fail_to_pass", plan.fail_to_pass), ("pass_to_pass", plan.pass_to_pass)):
        for name in names:
            case = (cases or {}).get(name) or Case(name, Status.MISSING)
            held = holds(case.status, must_change=group == "fail_to_pass")
            entry = {"id": name, "group": group, "status": case.status.value, "ok": held, "seconds": case.seconds}
            evidence.append(entry if held else {**entry, "message": case.message})
    evidence.sort(key=lambda entry: entry["ok"])
    return all(entry["ok"] for entry in evidence), evidence
