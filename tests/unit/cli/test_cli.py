"""The command line as a program: what it prints, and how it ends. Nothing here makes a sandbox."""

import json
import os
import socket
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.cli import orchard

from orchard.cli import console, copying, streaming, trajectories
from orchard.cli.main import COMMANDS
from orchard.core import errors
from orchard.sandbox.commands import status_of
from orchard.trajectories import RolloutRecord, Store


def test_help_imports_no_command() -> None:
    code = (
        "import sys; sys.argv = ['orchard', '--help']\n"
        "from orchard.cli.main import run\n"
        "try: run()\n"
        "finally: print('LOADED', sorted(name for name in sys.modules if name in "
        "('fastapi', 'aiohttp', 'pydantic', 'orchard.service', 'orchard.cli.sandbox')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert "LOADED []" in done.stdout, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


SUB = {
    "sandbox": ["create", "ls", "info", "rm", "run", "exec", "logs", "cp"], "keys": ["new", "ls"],
    "image": ["import", "ls", "rm"], "trajectories": ["ls", "show", "stats", "export"],
    "harness": ["ls", "install", "check"], "deploy": ["check"],
}  # fmt: skip
PAGES = [[name, sub] for name, subs in SUB.items() for sub in subs] + [
    ["serve"],
    ["doctor"],
    ["conformance"],
    ["cost"],
    ["gateway"],
    ["reap"],
]


def test_every_help_page_has_an_example_and_exit_codes() -> None:
    code = (
        "import sys, io, contextlib, json\nfrom orchard.cli.main import app\npages = {}\n"
        f"for words in {PAGES!r}:\n"
        "    text = io.StringIO()\n"
        "    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):\n"
        "        app([*words, '--help'])\n"
        "    pages[' '.join(words)] = text.getvalue()\n"
        "print(json.dumps(pages))"
    )
    env = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=env)
    pages = json.loads(done.stdout)
    assert len(pages) == len(PAGES)
    for name, page in pages.items():
        assert f"Example: orchard {name}" in page, name
        assert "Exit codes:" in page, name


def test_an_error_is_one_sentence_with_a_hint_and_no_traceback(tmp_path: Path) -> None:
    done = orchard("trajectories", "ls", "--store", str(tmp_path / "none"), env={})
    assert done.returncode == 3
    assert done.stderr.decode().splitlines() == [
        f"error: there is no store in {tmp_path / 'none'}",
        "hint: name it, or the folder of a run, with --store",
    ]
    with pytest.raises(errors.NotFound):
        orchard("--debug", "trajectories", "ls", "--store", str(tmp_path / "none"), env={})


def test_wrong_arguments_end_with_2(tmp_path: Path) -> None:
    assert orchard("sandbox", "nope", env={}).returncode == 2
    assert orchard("sandbox", "rm", env={}).returncode == 2
    assert orchard("serve", "--no-auth", "--host", "0.0.0.0", env={"ORCHARD_HOME": str(tmp_path)}).returncode == 2


def test_keys_are_made_once_and_listed_without_the_key(tmp_path: Path) -> None:
    made = orchard("keys", "new", "alice", "--quota", "5", env={"ORCHARD_HOME": str(tmp_path)})
    listed = orchard("keys", "ls", "--json", env={"ORCHARD_HOME": str(tmp_path)})
    assert made.stdout.startswith(b"orchard-")
    assert json.loads(listed.stdout) == [{"name": "alice", "tenant": "alice", "quota": 5, "rate": None}]
    assert orchard("keys", "new", "alice", env={"ORCHARD_HOME": str(tmp_path)}).returncode == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("x"), 2), (errors.NotFound("x"), 3), (errors.FileError.of("x", errno_name="ENOENT"), 3),
        (errors.Unauthorized("x"), 4), (errors.QuotaExceeded("x"), 4), (errors.SandboxGone("x"), 5),
        (errors.CreateFailed("x"), 6), (errors.Unavailable("x"), 7), (errors.DeadlineExceeded("x"), 7),
        (errors.Unsupported("x"), 8), (errors.MachineUnfit("x"), 8), (errors.InternalError("x"), 1),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_exit_code(error: errors.OrchardError, code: int) -> None:
    assert console.code_of(error) == code


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"exit_code": 0}, 0), ({"exit_code": 3}, 3), ({"signal": "KILL"}, 137), ({"signal": "SEGV"}, 139),
        ({"signal": "KILL", "timed_out": True}, 124), ({"exit_code": 124}, 124), ({"signal": "NONSENSE"}, 125),
    ],
)  # fmt: skip
def test_a_commands_end_is_told_as_a_shell_would(facts: dict[str, object], code: int) -> None:
    assert streaming.exit_code(status_of({"id": "op", "state": "exited", **facts})) == code


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("sb-1:/a", ("sb-1", "/a")), ("sb-1:rel", ("sb-1", "rel")), ("./a:b", (None, "./a:b")),
        ("/x:y", (None, "/x:y")), ("sb-1:/a:b\n", ("sb-1", "/a:b\n")),
    ],
)  # fmt: skip
def test_cp_tells_a_sandbox_from_a_path(argument: str, parts: tuple[str | None, str]) -> None:
    assert copying.split(argument) == parts


def test_cp_needs_a_path() -> None:
    with pytest.raises(errors.InvalidArgument):
        copying.split("sb-1:")
    with pytest.raises(errors.InvalidArgument, match="stdout"):
        copying.split("-")


def test_cp_leaves_a_link_and_fills_the_file_behind_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert copying._file_behind(tmp_path / "link") == tmp_path / "file"  # pyright: ignore[reportPrivateUsage]


EXAMPLE = str(Path(__file__).parents[3] / "examples/tasks/slug-keeps-digits")
HOME_USERS = [
    ("sandbox ls", 8), ("sandbox create host", 8), ("sandbox run host -- true", 125),
    ("sandbox exec sb-1 -- true", 125), ("image ls", 1), ("keys new k", 1), ("serve --port 0", 8),
    ("serve --port 0 --no-auth", 8),
]  # fmt: skip


@pytest.mark.parametrize("inner", ["", "/below"])
@pytest.mark.parametrize(("words", "code"), HOME_USERS)
def test_a_home_that_is_a_file_is_named_and_no_fault_of_orchard(
    tmp_path: Path, words: str, code: int, inner: str
) -> None:
    home = tmp_path / "home"
    home.write_text("mine")
    done = orchard(*words.split(), env={"ORCHARD_HOME": f"{home}{inner}"})
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert str(home) in said.splitlines()[0]
    assert "ORCHARD_HOME" in said
    assert "report it" not in said
    assert home.read_text() == "mine"


def test_doctor_has_a_row_for_a_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("mine")
    done = orchard("doctor", "--json", env={"ORCHARD_HOME": str(tmp_path / "home")})
    assert done.returncode == 8
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert not checks["home"]["ok"]
    assert str(tmp_path / "home") in checks["home"]["meaning"]
    assert checks["home"]["mend"] == "export ORCHARD_HOME=…"


def test_eval_names_a_run_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for run in (tmp_path / "file", tmp_path / "file/below"):
        done = orchard("eval", EXAMPLE, "--policy", "noop", "--run", str(run), env={"ORCHARD_HOME": str(tmp_path)})
        said = done.stderr.decode()
        assert done.returncode == 1
        assert f"error: {run}: " in said
        assert "report it" not in said


def test_a_task_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "task/task.toml").mkdir(parents=True)
    words = ["eval", str(tmp_path / "task"), "--policy", "noop", "--run", str(tmp_path / "run")]
    done = orchard(*words, env={})
    assert done.returncode == 2
    assert f"error: {tmp_path}/task/task.toml: Is a directory" in done.stderr.decode()


def test_serve_refuses_before_it_makes_a_key(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("no certificate")
    for words, code, says in [
        (["--backend", "nope"], 2, "'nope'"), (["--tls-key", "x"], 2, "--tls-certificate"),
        (["--tls-certificate", f"{tmp_path}/none.pem"], 1, f"error: {tmp_path}/none.pem: No such file"),
        (["--tls-certificate", f"{tmp_path}/pem"], 2, f"{tmp_path}/pem"),
    ]:  # fmt: skip
        done = orchard("serve", "--port", "0", *words, env={"ORCHARD_HOME": str(tmp_path / "home")})
        said = done.stderr.decode()
        assert done.returncode == code, said
        assert says in said
        assert "report it" not in said
        assert b"API key" not in done.stdout
    assert not (tmp_path / "home/service").exists()


@pytest.mark.parametrize("line", ["0", "61", "99", "-1"])
def test_conformance_has_lines_1_to_60(line: str) -> None:
    done = orchard("conformance", "--line", "1", "--line", line, env={})
    assert done.returncode == 2
    assert f"1 to 60, not {line}" in done.stderr.decode()


def test_trajectories_needs_a_store_and_takes_a_runs_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = orchard("trajectories", "ls", "--store", str(tmp_path / "other"), env={})
    assert done.returncode == 3
    assert "there is no store in" in done.stderr.decode()
    assert list((tmp_path / "other").iterdir()) == []
    with Store(tmp_path / "run/store") as store:
        store.append_now(
            RolloutRecord(
                id="ro-1", run="ru-1", task="t", attempt=7, tries=1, sessions=["se-1"], harness="bash-loop",
                harness_version="1", policy="script:near", model="m", started_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
        )  # fmt: skip
    for folder in (tmp_path / "run", tmp_path / "run/store"):
        listed = orchard("trajectories", "ls", "--store", str(folder), env={})
        assert listed.stdout.decode().split("\t")[:6] == ["ro-1", "ru-1", "t", "7", "bash-loop", "script:near"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["store"]


def test_the_columns_and_the_example_of_trajectories_are_true() -> None:
    assert trajectories.COLUMNS[3:6] == ("ATTEMPT", "HARNESS", "POLICY")
    page = orchard("trajectories", "ls", "--help", env={"COLUMNS": "200"}).stdout.decode()
    assert "harness = 'bash-loop'" in page


def test_the_help_of_keys_shows_the_name_of_the_table() -> None:
    assert b"one [[keys]] table a key" in orchard("keys", "--help", env={}).stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--label", "nope"], "--label takes NAME=VALUE, not 'nope'"),
        (["--label", "a=1", "--label", "a=2"], "--label a is given twice"),
    ],
)
def test_a_wrong_label_is_told_by_the_options_name(words: list[str], says: str) -> None:
    for command in (["create", "host"], ["ls"], ["rm"]):
        done = orchard("sandbox", *command, *words, env={})
        assert done.returncode == 2
        assert done.stderr.decode().splitlines() == [f"error: {says}"]


def test_a_port_that_is_taken_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = orchard("serve", "--port", str(port), env={"ORCHARD_HOME": str(tmp_path)})
    assert done.returncode == 7
    assert done.stdout == b""
    assert not (tmp_path / "service").exists(), "no key is made for a service that does not serve"
    assert done.stderr.decode().splitlines() == [
        f"error: cannot listen on port {port} of 127.0.0.1: Address already in use",
        "hint: choose another port",
    ]


def test_an_interrupt_during_the_import_is_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'orchard.core.errors': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from orchard.cli.entry import run\n"
        "run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=240)
    assert (done.returncode, done.stderr) == (130, b"")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"orchard": "orchard.cli.entry:run"}
