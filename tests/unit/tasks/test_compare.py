import pytest

from orchard.core.errors import TaskRefused
from orchard.tasks.junit import Case, Status
from orchard.tasks.release_pair.discovery import agreed, compare
from orchard.tasks.suite import Outcome


def cases(**statuses: str) -> dict[str, Case]:
    return {f"t.py::{name}": Case(f"t.py::{name}", Status(status), "why") for name, status in statuses.items()}


def test_fixed_kept_and_the_rest() -> None:
    before = cases(a="failed", b="error", c="passed", d="skipped", e="passed", f="xfailed", h="passed", i="skipped")
    after = cases(a="passed", b="xfailed", c="passed", d="passed", e="skipped", f="passed", g="passed", i="skipped")
    signal = compare(before, after)
    assert signal.fail_to_pass == ["t.py::a", "t.py::b", "t.py::g"]
    assert signal.pass_to_pass == ["t.py::c", "t.py::f"]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (cases(a="failed"), cases(a="passed", b="failed"), "gold_fails"),
        (cases(a="failed"), cases(a="passed", b="error"), "gold_fails"),
        (cases(a="passed"), cases(a="passed"), "no_fail_to_pass"),
        (cases(a="failed"), cases(a="skipped"), "no_fail_to_pass"),
        (cases(a="skipped"), cases(a="passed"), "no_fail_to_pass"),
    ],
)
def test_no_clean_signal_is_refused(before: dict[str, Case], after: dict[str, Case], reason: str) -> None:
    with pytest.raises(TaskRefused) as caught:
        compare(before, after)
    assert caught.value.reason == reason


def test_runs_must_agree_on_every_verdict() -> None:
    one, other = cases(a="passed", b="passed"), cases(a="passed", b="failed")
    assert agreed([Outcome(one), Outcome(one)], "it") == one
    for second in (other, cases(a="passed")):
        with pytest.raises(TaskRefused, match=r"t\.py::b") as caught:
            agreed([Outcome(one), Outcome(second)], "it")
        assert caught.value.reason == "unstable"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(None, "pytest left no report"),
        Outcome({}),
        Outcome({**cases(a="passed"), "test_b": Case("test_b", Status.ERROR)}),
    ],
)
def test_a_suite_that_does_not_come_together_is_refused(outcome: Outcome) -> None:
    with pytest.raises(TaskRefused) as caught:
        agreed([outcome, outcome], "the old code")
    assert caught.value.reason == "collection_error"
    assert "the old code" in caught.value.message
