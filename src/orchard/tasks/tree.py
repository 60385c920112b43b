"""A source tree in memory, and how its parts are told apart: tests, package code, the rest."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class SourceFile:
    """A regular file."""

    data: bytes
    executable: bool = False


Tree = Mapping[str, SourceFile]
"""Path relative to the top, with ``/`` -> file."""

_MTIME = 946_684_800  # 2000-01-01: tools that zip refuse times before 1980
_TEST_FOLDERS = frozenset({"tests", "test"})
_NOT_SUITES = frozenset({"examples", "example", "docs", "doc", "benchmarks", "benchmark"})
_TEST_FILE = re.compile(r"(test_.*|.*_test|conftest)\.py")


def is_test(path: str) -> bool:
    """True if ``path`` is of a test suite: below a folder ``tests`` or ``test``, or named as pytest's files are."""
    pure = PurePosixPath(path)
    return bool(_TEST_FOLDERS & set(pure.parts[:-1])) or bool(_TEST_FILE.fullmatch(pure.name))


def suite_roots(tree: Tree) -> list[str]:
    """Return what to give to pytest to run every test: the topmost test folders, and test files outside of them."""
    roots: set[str] = set()
    for path in tree:
        parts = PurePosixPath(path).parts
        if not is_test(path) or not path.endswith(".py") or parts[0] in _NOT_SUITES:
            continue
        folder = next((index for index, part in enumerate(parts[:-1]) if part in _TEST_FOLDERS), None)
        if folder is not None:
            roots.add("/".join(parts[: folder + 1]))
        elif parts[-1] != "conftest.py":
            roots.add(path)
    return sorted(roots)


def package_folders(tree: Tree) -> set[str]:
    """Return the topmost import packages: folders with ``__init__.py`` at the top or below ``src``, tests left out."""
    found: set[str] = set()
    for path in tree:
        parts = PurePosixPath(path).parts
        depth = 2 if parts[0] == "src" else 1
        if parts[-1] == "__init__.py" and len(parts) == depth + 1 and parts[-2] not in _TEST_FOLDERS:
            found.add("/".join(parts[:-1]))
    return found


def read_tree(folder: Path) -> dict[str, SourceFile]:
    """Return the regular files below ``folder``."""
    return {
        path.relative_to(folder).as_posix(): SourceFile(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def as_tar(tree: Tree, prefix: str = "") -> bytes:
    """Return ``tree`` as a tar archive, the same bytes for the same content: fixed times, owner root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree):
            entry = tarfile.TarInfo(f"{prefix}{path}")
            entry.size, entry.mtime = len(tree[path].data), _MTIME
            entry.mode = 0o755 if tree[path].executable else 0o644
            archive.addfile(entry, io.BytesIO(tree[path].data))
    return buffer.getvalue()
