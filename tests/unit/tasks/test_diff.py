import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.core.errors import TaskRefused
from orchard.tasks.release_pair.diff import difference, file_patch
from orchard.tasks.tree import SourceFile, Tree, as_tar, is_test, suite_roots

OLD = {
    "pkg/__init__.py": b"__version__ = '1.0'\nfrom pkg.a import f\n",
    "pkg/a.py": b"VERSION = (1, 0)\ndef f():\n    return 1\n",
    "pkg/data.txt": b"old\n",
    "pkg/gone.py": b"x = 1\n",
    "tests/test_a.py": b"def test_f(): assert f() == 1\n",
    "tests/test_gone.py": b"pass\n",
    "CHANGES.md": b"",
    "setup.py": b"setup(version='1.0')\n",
    "docs/conf.py": b"release = '1.0'\n",
}
NEW = {
    "pkg/__init__.py": b'__version__ = "1.1"\nfrom pkg.a import f\n',
    "pkg/a.py": b"VERSION = (1, 1)\ndef f():\n    return 2\n",
    "pkg/data.txt": b"new\n",
    "pkg/new.py": b"y = 2",
    "tests/test_a.py": b"def test_f(): assert f() == 2\n",
    "tests/data/x.bin": b"\xff\x00",
    "CHANGES.md": b"## 1.1",
    "setup.py": b"setup(version='1.1')\n",
    "docs/conf.py": b"release = '1.1'\n",
}


def files(contents: dict[str, bytes]) -> Tree:
    return {path: SourceFile(data) for path, data in contents.items()}


def test_code_goes_to_gold_tests_to_secret_and_the_rest_nowhere(tmp_path: Path) -> None:
    found = difference(files(OLD), files(NEW), "1.0", "1.1")
    assert found.code_files == ["pkg/a.py", "pkg/data.txt", "pkg/gone.py", "pkg/new.py"]
    assert found.test_files == {"tests/test_a.py": NEW["tests/test_a.py"], "tests/data/x.bin": b"\xff\x00"}
    assert found.deleted_tests == ["tests/test_gone.py"]
    assert "1.1" not in found.gold_patch
    assert "VERSION = (1, 1)" not in found.gold_patch
    after = applied(files(OLD), found.gold_patch, tmp_path)
    assert after["pkg/a.py"] == b"VERSION = (1, 0)\ndef f():\n    return 2\n"
    assert after["pkg/new.py"] == b"y = 2"
    assert "pkg/gone.py" not in after
    assert after["pkg/__init__.py"] == OLD["pkg/__init__.py"]


def applied(start: Tree, patch: str, folder: Path) -> dict[str, bytes]:
    for path, file in start.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(file.data)
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=folder, input=patch.encode(), check=True)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LINES = st.lists(st.text(st.sampled_from("ab \t\f\r\x1c\u2028é"), max_size=4), max_size=12)


@settings(max_examples=40, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_a_patch_turns_any_text_into_any_other(old: list[str], new: list[str], old_ends: bool, new_ends: bool) -> None:
    before = "\n".join(old) + ("\n" if old_ends else "")
    after = "\n".join(new) + ("\n" if new_ends else "")
    if before == after or not before or not after:
        return
    with tempfile.TemporaryDirectory() as folder:
        start = {"f.txt": SourceFile(before.encode())}
        patch = file_patch("f.txt", start["f.txt"], SourceFile(after.encode()))
        assert applied(start, patch, Path(folder)) == {"f.txt": after.encode()}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pkg/__init__.py": NEW["pkg/__init__.py"], "tests/test_a.py": b"1"}, "no_code_change"),
        ({"pkg/a.py": b"1"}, "no_tests"),
        ({"pkg/a.py": b"1", "tests/readme.txt": b"1"}, "no_tests"),
        ({"pkg/a.py": b"\xff\xfe", "tests/test_a.py": b"1"}, "binary_change"),
    ],
)
def test_differences_that_make_no_task_are_refused(changes: dict[str, bytes], reason: str) -> None:
    with pytest.raises(TaskRefused) as caught:
        difference(files(OLD), files({**OLD, **changes}), "1.0", "1.1")
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/data/x.json", True), ("src/pkg/tests/__init__.py", True), ("test_x.py", True), ("x_test.py", True),
        ("conftest.py", True), ("src/jinja2/tests.py", False), ("src/pkg/testing.py", False), ("tests", False),
        ("src/contest.py", False),
    ],
)  # fmt: skip
def test_what_counts_as_a_test(path: str, expected: bool) -> None:
    assert is_test(path) is expected


def test_suites_are_the_topmost_test_folders_without_examples() -> None:
    found = suite_roots(files(dict.fromkeys(
        ("tests/unit/test_a.py", "tests/conftest.py", "src/pkg/tests/test_b.py", "test_c.py", "conftest.py",
         "examples/tests/test_d.py", "tests/data.json"), b"",
    )))  # fmt: skip
    assert found == ["src/pkg/tests", "test_c.py", "tests"]


def test_a_tar_is_the_same_for_the_same_content_in_any_order() -> None:
    one, other = files({"a": b"1", "b": b"2"}), files({"b": b"2", "a": b"1"})
    assert as_tar(one) == as_tar(other)
    assert as_tar(one) != as_tar(files({"a": b"1", "b": b"3"}))
