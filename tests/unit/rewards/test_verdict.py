from itertools import product

import pytest

from orchard.core.errors import InvalidArgument
from orchard.rewards.registry import grader
from orchard.rewards.tests import TestsGrader, plan_of
from orchard.rewards.verdict import holds, judge
from orchard.tasks.junit import Case, Status
from orchard.tasks.model import GraderSpec, Task, TestPlan

PLAN = TestPlan(run=["t"], fail_to_pass=["f"], pass_to_pass=["p"])


def test_every_status_of_each_group() -> None:
    fine = {status for status in Status if holds(status, must_change=True)}
    assert fine == {Status.PASSED, Status.XFAILED}
    assert {status for status in Status if holds(status, must_change=False)} == {*fine, Status.SKIPPED}


def test_one_test_that_does_not_hold_is_enough_to_fail() -> None:
    for fixed, kept in product(Status, Status):
        cases = {name: Case(name, status, "words", 0.5) for name, status in (("f", fixed), ("p", kept))}
        cases = {name: case for name, case in cases.items() if case.status is not Status.MISSING}
        passed, _ = judge(PLAN, {**cases, "other": Case("other", Status.FAILED)})
        assert passed == (holds(fixed, must_change=True) and holds(kept, must_change=False))


def test_evidence_names_every_test_and_what_went_wrong_first() -> None:
    _, tests = judge(PLAN, {"f": Case("f", Status.PASSED, "", 0.5), "p": Case("p", Status.FAILED, "the words", 0.25)})
    assert tests == [
        {"id": "p", "group": "pass_to_pass", "status": "failed", "ok": False, "seconds": 0.25, "message": "the words"},
        {"id": "f", "group": "fail_to_pass", "status": "passed", "ok": True, "seconds": 0.5},
    ]


def test_no_report_is_every_test_missing() -> None:
    passed, tests = judge(PLAN, None)
    assert not passed
    assert [(test["id"], test["status"]) for test in tests] == [("f", "missing"), ("p", "missing")]


@pytest.mark.parametrize(("secret", "field"), [({}, "secret.tests"), ({"tests": {"run": []}}, "secret.tests.run")])
def test_a_task_without_a_usable_plan_is_the_callers_fault(secret: dict[str, object], field: str) -> None:
    task = Task(id="t", kind="k", instruction="i", image="m", graders=[GraderSpec(type="tests")], secret=secret)
    with pytest.raises(InvalidArgument) as caught:
        plan_of(task)
    assert caught.value.field == field


def test_a_plan_survives_being_stored() -> None:
    plan = TestPlan(run=["t"], fail_to_pass=["f"], files={"t/é.py": b"\x00\xff", "t/a": b"abcd"})
    assert plan.files["t/a"] == b"abcd"
    task = Task(
        id="t", kind="k", instruction="i", image="m", graders=[GraderSpec(type="tests")],
        secret={"tests": plan.model_dump(mode="json")},
    )  # fmt: skip
    assert plan_of(Task.model_validate_json(task.model_dump_json())) == plan


def test_graders_are_found_by_name() -> None:
    assert isinstance(grader("tests"), TestsGrader)
    with pytest.raises(InvalidArgument, match="nothing"):
        grader("nothing")
