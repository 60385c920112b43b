from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument, TaskRefused
from orchard.tasks.build import Recipe, image_name
from orchard.tasks.registry import load_tasks
from orchard.tasks.toml import library_in
from orchard.tasks.tree import SourceFile

GOOD = """
id = "my-task"
image = "some/image:1"
[limits]
turns = 7
[tests]
run = ["tests"]
fail_to_pass = ["tests/test_a.py::test_x"]
"""


def folder(at: Path, text: str = GOOD, words: str | None = "Mend it.") -> Path:
    at.mkdir(parents=True, exist_ok=True)
    (at / "task.toml").write_text(text)
    if words is not None:
        (at / "instruction.md").write_text(words)
    return at


def test_a_file_its_folder_and_a_folder_of_folders_name_the_same_task(tmp_path: Path) -> None:
    one = folder(tmp_path / "all" / "one")
    for reference in (one / "task.toml", one, tmp_path / "all"):
        (source,) = load_tasks(str(reference))
        assert source.id == "my-task"
    (source,) = load_tasks(f"toml:{one}")
    assert source.id == "my-task"


@pytest.mark.parametrize("reference", ["", " ", "toml:", "toml: ", "release-pair:"])
def test_an_empty_reference_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    folder(tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        load_tasks(reference)
    assert caught.value.field == "tasks"
    assert [source.id for source in load_tasks(".")] == ["my-task"]


def test_the_folder_gives_the_name_where_no_id_is_given(tmp_path: Path) -> None:
    folder(tmp_path / "a-name", GOOD.replace('id = "my-task"\n', ""))
    assert [source.id for source in load_tasks(str(tmp_path))] == ["a-name"]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('id = "a b"\n' + GOOD.replace('id = "my-task"', ""), "id"),
        ("colour = 1\n" + GOOD, "colour"),
        (GOOD.replace("turns = 7", "turns = 0"), "limits.turns"),
        (GOOD.replace("turns = 7", "turn = 7"), "limits.turn"),
        (GOOD.replace("turns = 7", 'memory = "much"'), "limits.memory"),
        (GOOD.replace("turns = 7", 'memory = "512"'), "limits.memory"),
        (GOOD.replace('fail_to_pass = ["tests/test_a.py::test_x"]', ""), "tests.fail_to_pass"),
        (GOOD.replace('run = ["tests"]', 'run = "tests"'), "tests.run"),
        (GOOD.replace('run = ["tests"]', 'run = ["../tests"]'), "tests.run.0"),
        ('image = "x"', "tests"),
        ('network = "wide"\n' + GOOD, "network"),
        ("install = true\n" + GOOD, "install"),
        ('requirements = ["pytest", "pytest<<8.4"]\n' + GOOD, "requirements.1"),
        ('requirements = ["-r other.txt"]\n' + GOOD, "requirements.0"),
        (GOOD + "[secret.tests]\na = 1\n", "secret.tests"),
        ('workdir = "here"\n' + GOOD, "workdir"),
        ("[[graders]]\nkind = 1\n[tests]\nrun=['a']\nfail_to_pass=['b']", "graders.0.type"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path: Path, text: str, field: str) -> None:
    place = folder(tmp_path / "t", text)
    with pytest.raises(InvalidArgument) as caught:
        load_tasks(str(place))
    assert caught.value.field == field
    assert str(place / "task.toml") in caught.value.message


def test_broken_toml_names_the_file_and_the_line(tmp_path: Path) -> None:
    place = folder(tmp_path / "t", "id = \n")
    with pytest.raises(InvalidArgument, match=r"task\.toml.*line 1"):
        load_tasks(str(place))


@pytest.mark.parametrize("words", [None, " \n"])
def test_a_task_says_what_is_to_be_done(tmp_path: Path, words: str | None) -> None:
    place = folder(tmp_path / "t", words=words)
    with pytest.raises(InvalidArgument, match=r"instruction\.md"):
        load_tasks(str(place))


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    folder(tmp_path / "a")
    folder(tmp_path / "b")
    with pytest.raises(InvalidArgument, match="my-task more than once"):
        load_tasks(str(tmp_path))


def test_only_keeps_what_it_names_and_misses_nothing_silently(tmp_path: Path) -> None:
    folder(tmp_path / "a", GOOD.replace("my-task", "a"))
    folder(tmp_path / "b", GOOD.replace("my-task", "b"))
    assert [source.id for source in load_tasks(str(tmp_path), only=["b"])] == ["b"]
    with pytest.raises(InvalidArgument, match="no task c"):
        load_tasks(str(tmp_path), only=["b", "c"])


@pytest.mark.parametrize("reference", ["nowhere/at/all", "release-pair", "unknown:thing"])
def test_a_reference_to_nothing_says_what_there_is(reference: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_tasks(reference)
    assert "release-pair" in str(caught.value)


def test_an_empty_folder_is_no_list_of_tasks(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no task\.toml"):
        load_tasks(str(tmp_path))


def test_the_documented_example_is_one_that_loads(tmp_path: Path) -> None:
    import orchard.tasks.toml as module

    example: Any = (module.__doc__ or "").split("```toml\n")[1].split("```")[0]
    (source,) = load_tasks(str(folder(tmp_path / "t", example)))
    assert source.id == "slugify-keeps-digits"


@pytest.mark.parametrize("name", ["instruction.md", "gold.patch"])
def test_a_file_that_is_not_utf8_is_named(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path / "t")
    (place / name).write_bytes(b"caf\xe9\n")
    with pytest.raises(InvalidArgument, match=r"not UTF-8") as caught:
        load_tasks(str(place))
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["my task", "日本", "-x", "a\n"])
def test_a_folder_whose_name_is_no_id_needs_one(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path / name, GOOD.replace('id = "my-task"\n', ""))
    with pytest.raises(InvalidArgument) as caught:
        load_tasks(str(place))
    assert caught.value.field == "id"
    folder(place)
    assert [source.id for source in load_tasks(str(place))] == ["my-task"]


def test_a_broken_pyproject_of_the_work_tree_is_the_tasks_fault() -> None:
    with pytest.raises(TaskRefused, match=r"work/pyproject\.toml"):
        library_in({"pyproject.toml": SourceFile(b"[[[broken")})
    assert library_in({"pyproject.toml": SourceFile(b"project = 3")}) is None


@pytest.mark.parametrize(("task", "name"), [("a..b-", "a-b"), ("X@1..2", "x-1-2"), ("a+b_c", "a-b-c")])
def test_any_id_makes_a_name_of_an_image(task: str, name: str) -> None:
    recipe = Recipe("sha256:0", "/testbed", {}, task)
    assert image_name(task, recipe) == f"orchard/{name}:{recipe.key()[:12]}"
