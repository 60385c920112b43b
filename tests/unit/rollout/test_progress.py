"""What a person sees of a run: lines in a log, a bar on a terminal."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console
from tests.support.toy import MEND, Toy

from orchard.rollout.jobs import Event, Job
from orchard.rollout.progress import board
from orchard.trajectories import Failure, RolloutRecord

AWAY = Failure(seam="engine", reason="engine_unavailable", text="the server [bold]answered[/] 503\nmore")


def record(reward: float | None, failure: Failure | None = None) -> RolloutRecord:
    return RolloutRecord(
        id="ro-1", run="r", task="toy", attempt=0, tries=1, sessions=["s"], harness="bash-loop", harness_version="1",
        policy="mend", model="m", stop="submitted", turns=3, reward=reward, failure=failure,
        started_at=datetime(2026, 1, 1, tzinfo=UTC), seconds={"prepare": 100.0, "harness": 1.25, "grade": 2.0},
    )  # fmt: skip


@pytest.mark.parametrize("terminal", [False, True])
def test_every_end_is_a_line_and_a_terminal_has_a_bar(terminal: bool) -> None:
    shown, job = io.StringIO(), Job(Toy("toy"), "bash-loop", MEND, 0)
    with board(
        Console(file=shown, width=60 if not terminal else 100, force_terminal=terminal, color_system=None), 5
    ) as observe:
        for event in (
            Event("known", job), Event("prepared", job), Event("started", job), Event("failed", job, AWAY),
            Event("closed", job, None, record(1.0)), Event("closed", job, None, record(0.0)),
            Event("closed", job, AWAY, record(None, AWAY)),
        ):  # fmt: skip
            observe(event)
    text = shown.getvalue()
    assert (
        "again    toy · bash-loop · mend #0: engine, engine_unavailable: the server [bold]answered[/] 503 … more\n"
        in text
    )
    assert text.count("resumed  1 of 5 were done before\n") == 1
    assert "passed   toy · bash-loop · mend #0 submitted, 3 turns, 3.2 s (2/5)\n" in text
    assert "failed   toy · bash-loop · mend #0 submitted, 3 turns, 3.2 s (3/5)\n" in text
    assert "broken   toy · bash-loop · mend #0 submitted, 3 turns, 3.2 s (4/5)\n" in text
    why = "engine, engine_unavailable: the server [bold]answered[/] 503 … more\n"
    assert text.count(why) == 2, "of a try and of the end"
    assert ("1 passed · 1 broken" in text) is terminal
    assert ("4/5" in text.replace("(4/5)", "")) is terminal
