import pytest

from orchard.core.errors import TaskRefused
from orchard.tasks.release_pair import changelog
from orchard.tasks.tree import SourceFile

RST = """\
Changes
=======

Version 3.2.0
-------------

Unreleased

-   Something of the future.

Version 3.1.6
-------------

Released 2025-03-05

-   The ``|attr`` filter does not bypass the environment's attribute lookup,
    allowing the sandbox to apply its checks. :ghsa:`cpwx-vrp4-4pq7`
-   :class:`~loaders.PackageLoader` calls ``open()`` once. :issue:`12, 13`, :pr:`14`

Version 3.1.5
-------------

-   Older news.
"""
MARKDOWN = """\
# Change Log

## [Unreleased]

## [0.12.2] - 2023-11-02

### Fixed

- Correct the return type of integer division. ([#312](https://github.com/x/y/issues/312))
- See https://github.com/x/y/pull/7 and commit (deadbeef12) by @someone

## [0.12.1] - 2023-07-27

- Make float and int hashable.
"""
PLAIN = """\
3.7 (2024-04-11)
* Specially crafted inputs to encode() take long [CVE-2024-3651]
Thanks to a person for reporting.
3.6 (2023-11-25)
* Older news here.
"""


def of(text: str, old: str, new: str, name: str = "CHANGES.rst") -> str:
    return changelog.entry({name: SourceFile(text.encode())}, old, new)


def test_rst_entry_ends_at_the_next_version_and_keeps_code() -> None:
    assert of(RST, "3.1.5", "3.1.6") == (
        "-   The ``|attr`` filter does not bypass the environment's attribute lookup,\n"
        "    allowing the sandbox to apply its checks.\n"
        "-   ``loaders.PackageLoader`` calls ``open()`` once."
    )


def test_markdown_entry_keeps_its_sections_and_loses_every_link() -> None:
    text = of(MARKDOWN, "0.12.1", "0.12.2", "CHANGELOG.md")
    assert text.startswith("### Fixed\n\n- Correct the return type of integer division.\n")
    assert not any(word in text for word in ("http", "312", "#", "deadbeef", "someone")) or text.count("#") == 3
    assert "Unreleased" not in text
    assert "hashable" not in text


def test_plain_text_with_bare_versions() -> None:
    assert of(PLAIN, "3.6", "3.7", "NEWS") == "* Specially crafted inputs to encode() take long"


def test_releases_in_between_belong_to_it() -> None:
    text = of(MARKDOWN, "0.12.0", "0.12.2", "HISTORY.md")
    assert "integer division" in text
    assert "hashable" in text


def test_old_sorts_by_number_and_not_by_letters() -> None:
    text = of("1.10\n====\n\nThe tenth news.\n\n1.9\n===\n\nThe ninth news.\n", "1.9", "1.10")
    assert text == "The tenth news."


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"README.md": "1.1\n===\nNews are here"}, "no changelog"),
        ({"CHANGES.rst": RST}, "CHANGES.rst"),
        ({"docs/changes.rst": "Changes\n=======\n\n.. include:: ../CHANGES.rst\n"}, "docs/changes.rst"),
        ({"CHANGES.md": "## 9.9\n\n- #12 ([#13](https://x/13))\n"}, "CHANGES.md"),
    ],
)
def test_without_words_of_its_own_a_release_is_refused(tree: dict[str, str], said: str) -> None:
    with pytest.raises(TaskRefused, match=said) as caught:
        changelog.entry({name: SourceFile(text.encode()) for name, text in tree.items()}, "9.8", "9.9")
    assert caught.value.reason == "no_changelog_entry"


def test_changelog_at_the_top_wins_over_one_in_docs() -> None:
    tree = {
        "docs/changelog.md": SourceFile(b"## 1.1\n\nWords of the docs.\n"),
        "CHANGES": SourceFile(b"1.1\n---\n\nTop words here.\n"),
    }
    assert changelog.entry(tree, "1.0", "1.1") == "Top words here."
