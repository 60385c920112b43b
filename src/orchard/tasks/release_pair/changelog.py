"""What the project itself says of a release: the only source of an instruction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchard.core.errors import TaskRefused
from orchard.tasks.tree import Tree

_FILE = re.compile(
    r"(changes|changelog|change[_-]log|history|news|release[_-]?notes|whats[_-]?new|releases)(\.(rst|md|markdown|txt))?",
    re.IGNORECASE,
)
_VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+)([a-z]+\.?\d*)?(?![\w.]*\d)", re.IGNORECASE)
_ATX = re.compile(r"(#{1,6})\s+(.*?)\s*#*")
_UNDERLINE = re.compile(r"([=\-~^\"'*+#`:.])\1{2,}\s*")
_LEAST_LETTERS = 12

_NOISE: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern, re.MULTILINE), into)
    for pattern, into in (
        (r"^\s*\.\. _.*$", ""),  # link targets
        (r"^\s*(Released|Release date|:Released?:|:Date:).*$", ""),
        (r"^\s*[-*]?\s*Thanks\b.*$", ""),
        (r"!\[[^\]]*\]\([^)]*\)", ""),  # pictures
        (r"\[([^\]]+)\]\([^)]*\)", r"\1"),
        (r"\[([^\]]+)\]\[[^\]]*\]", r"\1"),
        (r"`([^`<]+?)\s*<[^>`]+>`_{1,2}", r"\1"),
        (r":(issue|issues|pr|pull|ghsa|cve|user|commit|gh|ghpr|bug|ticket|contributor):`[^`]*`", ""),
        (r":[\w:.+-]+:`~?([^`<]+?)(\s*<[^>]*>)?`", r"``\1``"),
        (r"<?https?://[^\s>)\]]+>?", ""),
        (r"\b(CVE-\d{4}-\d+|GHSA(-\w{4}){3})\b", ""),
        (r"\b(?:issues?|pr|pull request|bug|ticket|gh|closes|fixes|refs?)[ -]?#?\d+\b", ""),
        (r"(?<![\w&])#\d+\b", ""),
        (r"\(\s*[0-9a-f]{7,40}\s*\)", ""),  # commits
        (r"\b(?:by|from|via)\s+@[\w-]+|(?<!\w)@[\w-]+(?=\s*[).,;]|\s*$)", ""),
        (
            r"(?<![\w`])[(\[][\s,;.:&]*(?:(?:by|from)\s+[\w -]{1,40})?[\s,;]*[)\]]",
            "",
        ),  # brackets that held only such things
        (r"[ \t]+([.,;:])(?=\s|$)", r"\1"),
        (r"(?<!\.)\.\.(?=\s|$)", "."),
        (r"([.!?])[ \t]*[,;]+(?=\s|$)", r"\1"),
        (r"(?<=[\w.,;:!?`)])[ \t]{2,}", " "),
        (r"[ \t]+$", ""),
        (r"\n{3,}", "\n\n"),
    )
]


@dataclass(frozen=True)
class _Heading:
    line: int
    """Index of the first line after the heading."""
    start: int
    level: tuple[str, int]
    version: tuple[str, str] | None
    """Number and suffix, such as ``("3.1.6", "")``."""


def entry(tree: Tree, old: str, new: str) -> str:
    """Return what the changelog in ``tree`` says of every release after ``old``, up to and with ``new``, cleaned.

    Raises:
        TaskRefused: there is no changelog, no entry, or nothing but links in it; reason ``no_changelog_entry``.
    """
    files = _changelogs(tree)
    for path in files:
        text = cleaned(_sections(tree[path].data.decode("utf-8", "replace"), old, new))
        if sum(letter.isalpha() for letter in text) >= _LEAST_LETTERS:
            return text
    where = f"none of {', '.join(files)} has" if files else "the source distribution has no changelog, hence"
    raise TaskRefused(
        f"{where} no usable entry for {new}" if not files else f"{where} a usable entry for {new}",
        reason="no_changelog_entry",
        hint="quote the project's published entry as 'changelog' in the list of pairs",
    )


def cleaned(text: str) -> str:
    """Return ``text`` without links, numbers of issues, commits, advisories, and credits: they lead to the answer."""
    for pattern, into in _NOISE:
        text = pattern.sub(into, text)
    return text.strip("\n").rstrip()


def _changelogs(tree: Tree) -> list[str]:
    """Return the paths of changelogs, those nearest to the top first."""
    found = [path for path in tree if _FILE.fullmatch(PurePosixPath(path).name)]
    return sorted(found, key=lambda path: (path.count("/"), path))


def _sections(text: str, old: str, new: str) -> str:
    lines = text.replace("\r\n", "\n").split("\n")
    headings = list(_headings(lines)) or list(_bare_headings(lines))
    parts: list[str] = []
    for index, heading in enumerate(headings):
        if heading.version is None or not _wanted(heading.version, old, new):
            continue
        end = next((later.start for later in headings[index + 1 :] if _closes(later.level, heading.level)), len(lines))
        parts.append("\n".join(lines[heading.line : end]))
    return "\n\n".join(parts)


def _headings(lines: Sequence[str]) -> Iterator[_Heading]:
    for index, line in enumerate(lines):
        if match := _ATX.fullmatch(line):
            yield _Heading(index + 1, index, ("#", len(match[1])), _version_in(match[2]))
        elif (
            line.strip()
            and not line[0].isspace()
            and index + 1 < len(lines)
            and (rule := _UNDERLINE.fullmatch(lines[index + 1]))
            and not _UNDERLINE.fullmatch(line)
        ):
            yield _Heading(index + 2, index, (rule[1], 0), _version_in(line))


def _bare_headings(lines: Sequence[str]) -> Iterator[_Heading]:
    """Plain text: lines that begin with a version."""
    for index, line in enumerate(lines):
        match = _VERSION.search(line)
        if match and not line[:1].isspace() and len(line[: match.start()].split()) <= 1 and len(line) < 80:
            yield _Heading(index + 1, index, ("", 0), _version_in(line))


def _closes(later: tuple[str, int], level: tuple[str, int]) -> bool:
    return later[0] == level[0] and later[1] <= level[1]


def _version_in(title: str) -> tuple[str, str] | None:
    match = _VERSION.search(title)
    return (match[1], (match[2] or "").lower()) if match else None


def _wanted(version: tuple[str, str], old: str, new: str) -> bool:
    number, suffix = version
    if number + suffix == new.lower():
        return True
    return not suffix and _key(old) < _key(number) <= _key(new)


def _key(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in re.findall(r"\d+", version)]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
