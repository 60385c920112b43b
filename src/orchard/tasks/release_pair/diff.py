"""The difference of two releases: code becomes the gold patch, tests become the secret test files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchard.core.errors import TaskRefused
from orchard.tasks.tree import SourceFile, Tree, is_test, package_folders

_NOT_CODE = frozenset({"setup.py", "noxfile.py", "conftest.py", "ez_setup.py", "distribute_setup.py", "fabfile.py"})
_VERSION_LINE = re.compile(
    r"^[ \t]*[\"']?_*version(_info|_tuple)?_*[\"']?\s*(:[^=\n]*)?[=:].*$", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True)
class Difference:
    """What the newer release changed."""

    gold_patch: str = field(repr=False)
    """Git-style patch of package code and data."""
    code_files: list[str]
    test_files: dict[str, bytes] = field(repr=False)
    """Whole new contents of test files that are new or changed."""
    deleted_tests: list[str]


def difference(old: Tree, new: Tree, old_version: str, new_version: str) -> Difference:
    """Return what changed between two releases, without versions, docs, changelogs and packaging.

    Raises:
        TaskRefused: no code changed (``no_code_change``), not as text (``binary_change``), or no test (``no_tests``).
    """
    folders = package_folders(old) | package_folders(new)
    parts: list[str] = []
    files: list[str] = []
    for path in sorted({*old, *new}):
        if not is_code(path, folders):
            continue
        before, after = old.get(path), _same_version(path, old, new, old_version, new_version)
        if before != after:
            parts.append(file_patch(path, before, after))
            files.append(path)
    if not files:
        raise TaskRefused("no code of the package changed beyond its version", reason="no_code_change")
    tests = {path: new[path].data for path in new if is_test(path) and _data(old, path) != new[path].data}
    if not any(path.endswith(".py") for path in tests):
        raise TaskRefused("no test of the source distribution changed", reason="no_tests")
    deleted = sorted(path for path in old if is_test(path) and path not in new)
    return Difference("".join(parts), files, tests, deleted)


def is_code(path: str, folders: set[str]) -> bool:
    """True if ``path`` belongs to the package: anything below its folders, or a module at the top."""
    if is_test(path):
        return False
    if any(path.startswith(f"{folder}/") for folder in folders):
        return True
    pure = PurePosixPath(path)
    at_top = len(pure.parts) == 1 or (len(pure.parts) == 2 and pure.parts[0] == "src")
    return at_top and pure.suffix == ".py" and pure.name not in _NOT_CODE


def file_patch(path: str, before: SourceFile | None, after: SourceFile | None) -> str:
    """Return one file's part of a git-style patch.

    Raises:
        TaskRefused: not text; reason ``binary_change``.
    """
    head = [f"diff --git a/{path} b/{path}"]
    if before is None and after is not None:
        head.append(f"new file mode {_mode(after)}")
    elif before is not None and after is None:
        head.append(f"deleted file mode {_mode(before)}")
    elif before is not None and after is not None and before.executable != after.executable:
        head += [f"old mode {_mode(before)}", f"new mode {_mode(after)}"]
    body = difflib.unified_diff(
        _lines(path, before), _lines(path, after),
        f"a/{path}" if before else "/dev/null", f"b/{path}" if after else "/dev/null",
    )  # fmt: skip
    return "".join([*(f"{line}\n" for line in head), *_ended(body)])


def _ended(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(path: str, file: SourceFile | None) -> list[str]:
    if file is None:
        return []
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        raise TaskRefused(f"{path} changed and is no UTF-8 text", reason="binary_change") from None
    return re.findall(r"[^\n]*\n|[^\n]+", text)  # not splitlines: it also splits at form feeds and the like


def _mode(file: SourceFile) -> str:
    return "100755" if file.executable else "100644"


def _data(tree: Tree, path: str) -> bytes | None:
    file = tree.get(path)
    return file.data if file else None


def _same_version(path: str, old: Tree, new: Tree, old_version: str, new_version: str) -> SourceFile | None:
    """Return the new file with its version lines as they stand in the old one: a bump is no part of a fix."""
    after, before = new.get(path), old.get(path)
    if after is None or before is None or not path.endswith((".py", ".pyi", ".txt", "VERSION")):
        return after
    if path.endswith("VERSION"):
        return before
    theirs = [line for line in _version_lines(before.data) if _names(line, old_version)]
    data = after.data
    for line in _version_lines(after.data):
        if _names(line, new_version) and theirs:
            data = data.replace(line.encode(), theirs.pop(0).encode(), 1)
    return SourceFile(data, after.executable)


def _version_lines(data: bytes) -> list[str]:
    return [match[0] for match in _VERSION_LINE.finditer(data.decode("utf-8", "ignore"))]


def _names(line: str, version: str) -> bool:
    numbers = re.findall(r"\d+", version)
    return version in line or re.search(r"\D+".join(numbers), line) is not None
