"""A task is believed only if gold scores 1 and noop 0; a refused one is shown and in no metric."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from orchard.evals.report import build_report
from orchard.evals.table import render
from orchard.evals.validate import verdicts
from orchard.trajectories import Failure, RolloutRecord

Make = Callable[..., RolloutRecord]
AWAY = Failure(seam="sandbox", reason="start_failed", text="no room on the machine")


@pytest.mark.parametrize(
    ("gold", "noop", "words"),
    [
        (1.0, 0.0, ""),
        (0.5, 0.0, "the gold patch scores 0.5 under bash-loop, not 1"),
        (1.0, 1.0, "doing nothing scores 1 under bash-loop, not 0"),
        (None, 0.0, "the gold run (bash-loop) could not be judged: no room on the machine"),
        (1.0, None, "the noop run (bash-loop) could not be judged: no room on the machine"),
    ],
)
def test_a_task_is_refused_with_the_reason(make_record: Make, gold: float, noop: float, words: str) -> None:
    rows = [
        make_record(score, policy=policy, failure=AWAY if score is None else None)
        for policy, score in (("gold", gold), ("noop", noop))
    ]
    assert verdicts(rows)["t-1"].reason == words
    assert verdicts(rows)["t-1"].ok is (words == "")


NAMED = [
    {"id": "t.py::a", "status": "failed", "ok": False, "message": "assert 1 == 2\nmore"},
    {"id": "t.py::b", "status": "passed", "ok": True},
]


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({"log": "…", "tests": NAMED}, "1 of 2 named tests do not hold, such as t.py::a failed (assert 1 == 2)"),
        (
            {"log": "", "tests": [{"id": "t.py::c", "status": "missing", "ok": False, "message": ""}]},
            "1 of 1 named tests do not hold, such as t.py::c missing",
        ),
        ({"reason": "patch_failed", "detail": "error: patch failed: a.py:3\nmore"}, "error: patch failed: a.py:3"),
        ({"exit_code": 2, "timed_out": False, "log": "one\nsh: x: not found\n"}, "exit code 2: sh: x: not found"),
        ({"exit_code": 2, "timed_out": False, "log": ""}, "exit code 2"),
        ({"exit_code": None, "signal": 9, "timed_out": False, "log": "…\nso far"}, "signal 9: so far"),
        ({"exit_code": None, "timed_out": True, "log": "still at it"}, "its time is over: still at it"),
    ],
)
def test_a_gold_patch_that_does_not_score_is_refused_with_the_graders_words(
    make_record: Make, evidence: dict[str, Any], words: str
) -> None:
    told = [{"grader": "one", "score": 1.0, "evidence": {"log": "fine"}}, {"grader": "two", "score": 0.0}]
    told[1]["evidence"] = evidence
    rows = [make_record(0.5, policy="gold", rewards=told), make_record(0.0, policy="noop")]
    [refused] = build_report("run-1", "Title", rows).refused
    assert refused.reason == f"the gold patch scores 0.5 under bash-loop, not 1: {words}"


def test_a_task_without_a_proof_is_refused(make_record: Make) -> None:
    assert verdicts([make_record(1.0)])["t-1"].reason == "there is no gold run"


def test_a_refused_task_is_in_no_metric_and_told_loudly(make_record: Make) -> None:
    rows = [
        make_record(score, task=task, policy=policy)
        for task, scores in (("good", (1.0, 0.0, 1.0)), ("bad[1]", (0.0, 0.0, 0.0)))
        for policy, score in zip(("gold", "noop", "m"), scores, strict=True)
    ]
    report = build_report("run-1", "Title", rows)
    assert [one.task for one in report.refused] == ["bad[1]"]
    measured = next(row for row in report.rows if row.policy == "m")
    assert (measured.metrics.tasks, measured.metrics.passed) == (1, 1)
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(report))
    assert "task refused bad[1]: the gold patch scores 0 under bash-loop, not 1" in shown.getvalue()
    assert report.to_json()["verdicts"][0]["ok"] is False


def test_without_validation_all_tasks_count_and_the_report_says_so(make_record: Make) -> None:
    report = build_report("run-1", "Title", [make_record(1.0)], validated=False)
    assert report.rows[0].metrics.tasks == 1
    assert report.refused == []
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(report))
    assert "not validated" in shown.getvalue()


def test_a_script_that_does_otherwise_than_it_says_is_a_surprise(make_record: Make) -> None:
    rows = [make_record(1.0, policy="script:hardcode", labels={"expect": "fail"})]
    report = build_report("run-1", "Title", rows, validated=False)
    assert [cell.policy for cell in report.surprises] == ["script:hardcode"]


def test_at_80_columns_long_names_are_folded_not_cut(make_record: Make) -> None:
    long = "organisation/a-model-with-a-long-name-"
    names = [f"{long}{size}-instruct" for size in ("7b", "70b")]
    rows = [
        make_record(reward, harness=harness, policy=policy, attempt=attempt, failure=AWAY if reward is None else None,
                    labels={"expect": "fail"})
        for harness in ("bash-loop", "mini-swe-agent") for policy in names
        for attempt, reward in enumerate((1.0, 0.0, 1.0, None))
    ]  # fmt: skip
    shown = io.StringIO()
    Console(file=shown, width=80).print(render(build_report("run-1", "Title", rows, validated=False)))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in shown.getvalue()
    head = next(line for line in lines if "harness" in line and "policy" in line)
    start, end = head.index("policy"), head.index("must")
    assert {"harness", "policy", "must", "passed", "pass@k"} <= set(head.split())
    assert "judged" in shown.getvalue(), "the last column is there"
    folded = "".join(line[start:end].strip() for line in lines)
    assert [folded.count(name) for name in names] == [2, 2]
