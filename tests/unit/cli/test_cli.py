"""The command line as a program: what it prints, and how it ends. Nothing here makes a sandbox."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.cli import orchard

from orchard.cli import console, copying, streaming
from orchard.cli.main import COMMANDS
from orchard.core import errors
from orchard.sandbox.commands import status_of


def test_help_imports_no_command_and_is_quick() -> None:
    code = (
        "import sys; sys.argv = ['orchard', '--help']\n"
        "from orchard.cli.main import run\n"
        "try: run()\n"
        "finally: print('LOADED', sorted(name for name in sys.modules if name in "
        "('fastapi', 'aiohttp', 'pydantic', 'orchard.service', 'orchard.cli.sandbox')))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "LOADED []" in done.stdout, done.stderr
    assert all(name in done.stdout for name in COMMANDS)
    assert time.monotonic() - start < 5


SUB = {
    "sandbox": ["create", "ls", "info", "rm", "run", "exec", "logs", "cp"], "keys": ["new", "ls"],
    "image": ["import", "ls", "rm"], "trajectories": ["ls", "show", "export"],
}  # fmt: skip
PAGES = [[name, sub] for name, subs in SUB.items() for sub in subs] + [["serve"], ["doctor"], ["conformance"]]


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
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
        "hint: name it with --store",
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
