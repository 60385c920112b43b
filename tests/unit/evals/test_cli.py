"""``orchard eval`` refuses what is wrong before anything is made."""

import sys
from pathlib import Path

import pytest

from orchard.cli.main import run

EXAMPLE = Path(__file__).parents[3] / "examples/tasks/slug-keeps-digits"


def test_a_model_server_that_is_not_there_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "m", "--base-url", "http://127.0.0.1:1/v1", "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["orchard", "eval", str(EXAMPLE), *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 7
    assert "no model server answers at http://127.0.0.1:1/v1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "goldd"], "no policy 'goldd'"),
        (["--model", "m", "--base-url", "notaurl"], "'notaurl' is no URL of a model server"),
        (["--model", "m", "--base-url", "http://:8000/v1"], "is no URL of a model server"),
        (["--model", "m", "--base-url", "http://h:port/v1"], "is no URL of a model server"),
        (["--model", "m"], "--model needs --base-url"),
        ([], "give --policy, or --model with --base-url"),
        ([str(EXAMPLE), "--policy", "gold"], "task slug-keeps-digits is named more than once"),
        (["--policy", "gold", "--policy", "gold"], "policy gold is named more than once"),
        (["--policy", "gold", "--training"], "training needs a model"),
        (["--policy", "gold", "--harness", "mini"], "no harness 'mini'"),
        (["--policy", "gold", "--only", "other"], "no task other"),
        (["--policy", "gold", "--option", "temperature=1"], "--option takes HARNESS.NAME=VALUE"),
        (["--policy", "gold", "--option", "nope.x=1"], "options for nope, which the plan does not use"),
        (["--policy", "gold", "--option", "bash-loop.x=1"], "bash-loop has no option x"),
        (["--policy", "gold", "--option", "bash-loop.sampling=1"], "sampling must map names to values"),
        (["--policy", "gold", "--option", "bash-loop.system=1"], "system must be text"),
        (["--policy", "gold", "--harness", "command"], "either `argv` or `shell`"),
        (["--policy", "gold", "--harness", "command", "--option", "command.argv=ls"], "`argv` is a list of texts"),
        (["--policy", "gold", "--harness", "mini-swe-agent", "--option", "mini-swe-agent.x=1"], "no option x"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.setenv("ORCHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["orchard", "eval", str(EXAMPLE), "--run", str(tmp_path / "run"), *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "home").exists()
