"""``python -m bench`` for real, at small sizes: its figures have their shape. Nothing here asserts a time."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIELDS = {"name", "measurement", "value", "unit", "floor", "peers", "target", "met", "n", "note", "machine"}


def bench(*options: str, scratch: str = "/tmp") -> subprocess.CompletedProcess[str]:
    argv, env = [sys.executable, "-m", "bench", *options], {**os.environ, "TMPDIR": scratch}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_it_names_its_measurements() -> None:
    told = bench("--list")
    assert told.returncode == 0, told.stderr
    assert {line.split()[0] for line in told.stdout.splitlines()} >= {"create", "run", "output", "files", "alive"}


def test_a_quick_run_writes_figures_and_leaves_nothing(tmp_path: Path) -> None:
    document = ROOT / "docs" / "benchmarks.md"
    before = document.read_text()
    results = tmp_path / "results.json"
    only = ["--only", "create", "--only", "run", "--only", "output"]
    with tempfile.TemporaryDirectory() as scratch:
        told = bench("--quick", *only, "--results", str(results), scratch=scratch)
        assert told.returncode == 0, told.stderr
        assert not list(Path(scratch).iterdir())
    rows = json.loads(results.read_text())
    assert [row["measurement"] for row in rows] == ["create"] * 2 + ["run"] * 5 + ["output"] * 6
    for row in rows:
        assert set(row) == FIELDS
        assert row["n"] > 0
        assert {"cores", "kernel", "memory_gib", "date"} <= set(row["machine"])
    direct = next(row for row in rows if row["name"] == "run true, direct, p50")
    assert direct["unit"] == "ms"
    assert direct["value"] > 0
    assert direct["met"] in (True, False)
    assert direct["floor"]["fork+exec"] > 0
    assert set(direct["peers"]) == {"mini-swe-agent", "swe-rex"}
    assert document.read_text() == before
