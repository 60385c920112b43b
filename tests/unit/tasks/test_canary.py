import subprocess
import sys
from pathlib import Path

import pytest

from orchard.tasks import canary
from orchard.tasks.junit import Case, parse

FAKE = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
DISARMED = "import unittest\nunittest.TestCase.assertTrue = lambda *words: None\n"


def report(folder: Path, conftest: str) -> dict[str, Case]:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_own.py").write_text("def test_fine(): pass\n")
    (folder / "test_zz.py").write_text(canary.source("a-token"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
    command += ["-o", "junit_family=xunit1", "--junitxml=r.xml", "."]
    subprocess.run(command, cwd=folder, capture_output=True)
    return parse((folder / "r.xml").read_bytes(), ["test_own.py", "test_zz.py"])


def test_an_honest_run_is_believed_and_the_rest_is_left(tmp_path: Path) -> None:
    rest, honest = canary.taken_out(report(tmp_path, ""), "test_zz.py")
    assert honest
    assert list(rest) == ["test_own.py::test_fine"]


@pytest.mark.parametrize("conftest", [FAKE, DISARMED, "collect_ignore = ['test_zz.py']"])
def test_a_run_that_fakes_disarms_or_leaves_out_is_not(tmp_path: Path, conftest: str) -> None:
    _, honest = canary.taken_out(report(tmp_path, conftest), "test_zz.py")
    assert not honest


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (["tests"], "tests/test_zz_t_test.py"),
        (["a/test_x.py", "b"], "a/test_zz_t_test.py"),
        (["test_x.py"], "test_zz_t_test.py"),
    ],
)
def test_it_lies_where_the_suite_lies(run: list[str], expected: str) -> None:
    assert canary.path_beside(run, "t") == expected
