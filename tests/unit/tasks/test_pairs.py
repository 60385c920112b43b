from pathlib import Path

import pytest

from orchard.core.errors import InvalidArgument
from orchard.tasks.registry import load_tasks
from orchard.tasks.release_pair import instruction, pairs


def test_the_known_pairs_are_named_and_keep_their_extras_when_named_alone() -> None:
    ids = [source.id for source in load_tasks("release-pair:known")]
    assert ids == ["xmltodict@0.14.1..0.14.2", "tomlkit@0.12.1..0.12.2", "jinja2@3.1.5..3.1.6", "sqlparse@0.5.0..0.5.1"]
    (jinja,) = pairs.read("Jinja2@3.1.5..3.1.6")
    assert jinja.extra_requirements == ["trio"]
    assert "attribute lookup" in (jinja.changelog or "")


def test_a_reference_names_its_pair() -> None:
    (pair,) = pairs.read("Some_Lib.x@1.0rc1..1.0.post1")
    assert (pair.package, pair.old, pair.new, pair.id) == (
        "Some_Lib.x",
        "1.0rc1",
        "1.0.post1",
        "some-lib-x@1.0rc1..1.0.post1",
    )


def test_a_list_of_pairs_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[pair]]\npackage = "a"\nold = "1"\nnew = "2"\n[[pair]]\npackage = "b"\nold = "1"\nnew = "2"\n')
    assert [source.id for source in load_tasks(f"release-pair:{path}")] == ["a@1..2", "b@1..2"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[[pair]]\npackage = "a"\nold = "1"\n', "pair.0.new"),
        ('[[pair]]\npackage = "a"\nold = "1"\nnew = "2"\nnewer = "3"\n', "pair.0.newer"),
        ('[[pair]]\npackage = "-r x"\nold = "1"\nnew = "2"\n', "pair.0.package"),
        ('[[pair]]\npackage = "a"\nold = "1 ; evil"\nnew = "2"\n', "pair.0.old"),
        ('[[pair]]\npackage = "a"\nold = "1..2"\nnew = "2"\n', "pair.0.old"),
        (
            '[[pair]]\npackage = "a"\nold = "1"\nnew = "2"\nextra_requirements = ["b=="]\n',
            "pair.0.extra_requirements.0",
        ),
        ("", "pair"),
    ],
)
def test_a_wrong_list_names_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        load_tasks(f"release-pair:{path}")
    assert caught.value.field == key
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    "reference", ["xmltodict", "xmltodict@0.14.1", "a@1..", "a@1..2..3/../x", "@1..2", "a@one..two"]
)
def test_a_half_reference_is_refused(reference: str) -> None:
    with pytest.raises(InvalidArgument):
        pairs.read(reference)


def test_the_frame_says_where_and_how_and_gives_nothing_away() -> None:
    (pair,) = pairs.read("xmltodict@0.14.1..0.14.2")
    text = instruction.of(pair, "* Revert the thing\n\n  * because", "/testbed")
    assert "    * Revert the thing\n\n      * because\n" in text
    assert all(word in text for word in ("/testbed", "xmltodict", "0.14.1", "tests that you do not see", "no network"))
    assert "0.14.2" not in text
