"""The run's folder: one id for good, one process at a time, a lock that dies with its holder."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchard.core.errors import Conflict, InvalidArgument
from orchard.rollout.facts import Facts
from orchard.rollout.folder import open_run, read_run

HOLD = """
import pathlib, sys
from orchard.rollout.folder import open_run
with open_run(pathlib.Path(sys.argv[1])) as run:
    print(run.id, flush=True)
    sys.stdin.read()
"""


def test_the_id_stays_and_scratch_of_a_dead_process_goes(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        first = run.id
        (run.scratch / "left").write_text("x")
    (tmp_path / "run" / "scratch").mkdir()
    (tmp_path / "run" / "scratch" / "left").write_text("x")
    with open_run(tmp_path / "run") as run:
        assert run.id == first
        assert list(run.scratch.iterdir()) == []


def test_a_relative_folder_is_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_run(Path("run")) as run:
        monkeypatch.chdir("/")
        assert run.path == tmp_path / "run"
        assert run.scratch.is_dir()


def test_a_second_process_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    held = holder.stdout.readline().strip()
    with pytest.raises(Conflict, match="another process works on the run"), open_run(tmp_path):
        pass
    with read_run(tmp_path) as run:
        assert run.id == held
    holder.kill()
    holder.communicate()
    with open_run(tmp_path) as run:
        assert run.id == held


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(InvalidArgument, match=r"run\.json is not the mark of a run"), open_run(tmp_path):
        pass
    with pytest.raises(InvalidArgument, match="holds no run"), read_run(tmp_path / "nowhere"):
        pass


@pytest.mark.parametrize("name", ["scratch/thesis.txt", "facts.jsonl", "report.html", "store/wares.db"])
def test_what_is_nobodys_run_is_refused_and_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidArgument, match=f"holds {Path(name).parts[0]}, which is no run's"), open_run(tmp_path):
        pass
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [Path(name).parts[0]], "nothing is left beside it"


def test_facts_are_kept_and_another_setting_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    Facts(file).hold({"policy m": {"model": "m", "sampling": {"top_p": 1}}})
    with file.open("a") as cut:
        cut.write('["task t", {"ima')
    Facts(file).hold({"policy m": {"model": "m", "sampling": {"top_p": 1}}, "policy n": {"model": "n"}})
    kept = Facts(file)
    assert (kept.knows("policy n"), kept.knows("task t")) == (True, False)
    with pytest.raises(Conflict, match=r"\(policy m: sampling\) — choose another --run folder"):
        kept.hold({"policy o": {}, "policy m": {"model": "m", "sampling": {}}})
    assert not Facts(file).knows("policy o"), "a refused plan leaves nothing"


def test_facts_of_a_run_that_made_nothing_bind_nobody(tmp_path: Path) -> None:
    for options in ({"a": 1}, {"a": 2}):
        with open_run(tmp_path) as run:
            run.facts.hold({"harness h": {"options": options}})
