import pytest
from pydantic import ValidationError

from orchard.rewards.guard import is_guarded, settings_of
from orchard.tasks.model import TestPlan

PLAN = TestPlan(
    run=["tests", "src/pkg/test_one.py"], fail_to_pass=["tests/test_a.py::a"], files={"checks/new.py": b""},
    deleted=["checks/old.py"], protected=["tools/check.py", "fixtures/"],
)  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "tests", "tests/test_a.py", "tests/helpers/deep/new.py", "tests/data.json", "src/pkg/test_one.py",
        "checks/new.py", "checks/old.py", "tools/check.py", "fixtures/x",
        "conftest.py", "src/pkg/conftest.py", "pytest.ini", ".pytest.ini", "src/pytest.toml", "tox.ini",
        "sitecustomize.py", "src/sitecustomize/__init__.py", "src/usercustomize.cpython-311-x86_64-linux-gnu.so",
        "evil.pth", "src/evil.egg-link", "evil.egg-info/entry_points.txt", "src/evil-1.0.dist-info/METADATA",
        "src/pkg/__pycache__/core.cpython-311.pyc", "core.pyc",
    ],
)  # fmt: skip
def test_an_attempt_does_not_decide_on(path: str) -> None:
    assert is_guarded(path, PLAN)


@pytest.mark.parametrize(
    "path",
    [
        "src/pkg/core.py", "src/pkg/tests.py", "src/pkg/testing.py", "testsuite.py", "src/pkg/contest.py", "setup.py",
        "src/pkg/test_two.py", "docs/pytest.ini.rst", "src/pkg/site.py", "fixtures2/x", "tools", "pyproject.toml",
    ],
)  # fmt: skip
def test_an_attempt_may_change(path: str) -> None:
    assert not is_guarded(path, PLAN)


def test_only_what_pyproject_tells_pytest_and_tox_counts() -> None:
    same = settings_of("pyproject.toml", b"[project]\nname='a'\n[tool.pytest.ini_options]\naddopts='-q'")
    assert same == settings_of(
        "pyproject.toml", b"[project]\nname='b'\n[tool.pytest.ini_options]\naddopts='-q'\n[tool.x]"
    )
    assert same != settings_of("pyproject.toml", b"[tool.pytest.ini_options]\naddopts='-p evil'")
    assert settings_of("pyproject.toml", b"[tool.tox]\nlegacy=1") != settings_of("pyproject.toml", b"")


def test_only_what_setup_cfg_tells_pytest_and_tox_counts() -> None:
    plain = settings_of("setup.cfg", b"[metadata]\nname = a\n")
    assert plain == settings_of("setup.cfg", b"[metadata]\nname = b\n[flake8]\nx = 1\n") == {}
    for section in ("tool:pytest", "pytest", "tox", "testenv", "testenv:py311"):
        assert settings_of("setup.cfg", f"[{section}]\na = 1\n".encode()) != plain


@pytest.mark.parametrize("data", [b"= broken", b"\xff\xfe", b"tool = 1"])
def test_settings_that_cannot_be_read_are_no_settings(data: bytes) -> None:
    assert settings_of("pyproject.toml", data) is None


def test_where_all_is_run_what_is_named_as_a_test_is_guarded() -> None:
    plan = TestPlan(run=["."], fail_to_pass=["test_a.py::a"])
    guarded = {
        path for path in ("test_a.py", "pkg/tests/data.txt", "pkg/core.py", "README.md") if is_guarded(path, plan)
    }
    assert guarded == {"test_a.py", "pkg/tests/data.txt"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "tests/test_a.py::test_x", ""])
@pytest.mark.parametrize("key", ["run", "deleted", "protected"])
def test_a_plan_stays_in_the_work_tree(key: str, path: str) -> None:
    facts = {"run": ["tests"], "fail_to_pass": ["a"], key: [path]}
    with pytest.raises(ValidationError):
        TestPlan.model_validate(facts)


def test_a_slash_more_or_a_dot_changes_nothing() -> None:
    plan = TestPlan(run=["./tests/", "./a.py"], fail_to_pass=["a"])
    assert plan.roots == ["tests", "a.py"]
    assert is_guarded("tests/x", plan)
