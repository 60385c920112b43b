"""The frame of the benches: turns, percentiles, targets, merging and the table."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench import table
from bench.__main__ import MEASUREMENTS, main, merged
from bench.frame import Batch, Peak, Row, Target, interleave, p50, p99

MACHINE = {
    "date": "2026-01-02T03:04+00:00",
    "cores": 2,
    "processor": "P",
    "memory_gib": 8,
    "kernel": "L 6",
    "load_before": 0.1,
}


def plain(measurement: str, value: float = 1.0, **more: Any) -> dict[str, Any]:
    return Row("row", value, "ms", 3, **more).plain(measurement, MACHINE)


def test_contestants_take_turns_and_the_first_round_only_warms_up() -> None:
    order: list[str] = []

    def contestant(name: str) -> Batch:
        async def run(n: int) -> list[float]:
            order.append(name)
            return [float(len(order))] * n

        return run

    seconds = asyncio.run(interleave({name: contestant(name) for name in "abc"}, rounds=2, each=2))
    assert "".join(order) == "abc" + "bca" + "cab"
    assert seconds["a"] == [6.0, 6.0, 8.0, 8.0]


def test_percentiles_lie_within_what_was_measured() -> None:
    values = [float(number) for number in range(1, 1001)]
    assert p50(values) == 500.5
    assert 990 <= p99(values) <= 991
    assert p99([4.0]) == 4.0


@pytest.mark.parametrize(
    ("target", "value", "met", "words"),
    [
        (Target(3.0), 3.0, True, "<= 3 ms"),
        (Target(3.0), 3.1, False, "<= 3 ms"),
        (Target(200.0, at_most=False), 250.0, True, ">= 200 ms"),
        (Target(200.0, at_most=False), 199.0, False, ">= 200 ms"),
    ],
)
def test_a_row_says_its_target_and_whether_it_is_met(target: Target, value: float, met: bool, words: str) -> None:
    row = plain("run", value, target=target)
    assert (row["target"], row["met"]) == (words, met)


def test_a_figure_that_cannot_be_had_meets_nothing() -> None:
    row = Row("memory", None, "MB", 1, Target(16.0), peers={"swe-rex": None}).plain("output", MACHINE)
    assert (row["value"], row["met"], row["peers"]) == (None, None, {"swe-rex": None})


def test_a_run_of_one_measurement_leaves_the_others_figures() -> None:
    old = [plain("create", 1), plain("run", 2), plain("run", 3)]
    rows = merged(old, [plain("run", 9)])
    assert [(row["measurement"], row["value"]) for row in rows] == [("create", 1), ("run", 9)]


def test_the_table_is_replaced_between_its_marks_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    missed = plain("run", 7.0, target=Target(3.0), floor={"fork": 1.0}, peers={"swe-rex": None}, note="a note")
    for _ in range(2):
        table.write(page, [missed])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("| row | **7 ms** | <= 3 ms | **no** | fork 1 | swe-rex – | 3 |") == 1
    assert "`python -m bench --only run` (2026-01-02, 2 cores" in text
    assert "A note." in text


def test_a_peak_is_the_growth_of_resident_memory() -> None:
    child = [sys.executable, "-c", "input(); x = b'x' * 50_000_000; print(flush=True); input()"]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        peak = Peak(process.pid)
        peak.begin()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        peak.end()
        process.communicate(b"\n")
    assert peak.highest is not None
    assert 45 <= peak.highest <= 70


def test_every_figure_of_the_document_stands_in_the_results() -> None:
    root = Path(__file__).parents[3]
    rows = json.loads((root / "bench" / "results.json").read_text())
    assert {row["measurement"] for row in rows} <= set(MEASUREMENTS)
    assert table.render(rows) in (root / "docs" / "benchmarks.md").read_text()


def test_figures_written_elsewhere_leave_the_document_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(names: Sequence[str], quick: bool) -> list[dict[str, Any]]:
        return [plain(name, 7) for name in names]

    monkeypatch.setattr("bench.__main__.measured", measured)
    monkeypatch.setattr("bench.__main__.HERE", tmp_path / "bench")
    for folder in ("bench", "docs"):
        (tmp_path / folder).mkdir()
    document = tmp_path / "docs" / "benchmarks.md"
    document.write_text("<!-- bench:begin -->\nold\n<!-- bench:end -->\n")
    elsewhere = tmp_path / "elsewhere.json"
    for given, said in ((["--results", str(elsewhere)], "old"), ([], "**7 ms**")):
        monkeypatch.setattr("sys.argv", ["bench", "--only", "run", *given])
        main()
        assert said in document.read_text()
    assert elsewhere.read_text() == (tmp_path / "bench" / "results.json").read_text()
