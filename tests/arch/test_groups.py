"""Tests that share what is dear to make run on one worker; else each worker would make it again, unnoticed."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness import conftest as harness
from tests.kubernetes import conftest as kubernetes

PROJECT = {
    "conftest.py": """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for number, item in enumerate(items):
        item.add_marker(pytest.mark.xdist_group(f"group-{number % 2}"))
""",
    "test_workers.py": """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_worker(number):
    with open(f"group-{number % 2}", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
""",
}


def test_tests_of_a_group_run_on_one_worker(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for number in range(2):
        workers = (tmp_path / f"group-{number}").read_text().split()
        assert len(workers) == 6
        assert len(set(workers)) == 1


@pytest.mark.parametrize("conftest", [harness, kubernetes], ids=lambda module: module.__name__)
def test_groups_are_named_before_they_are_read(conftest: object) -> None:
    hook = getattr(conftest, "pytest_collection_modifyitems")  # noqa: B009 - the hooks have different signatures
    assert hook.pytest_impl["tryfirst"]
