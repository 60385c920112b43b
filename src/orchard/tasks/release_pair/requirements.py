"""What an environment needs to install the old tree and to run the new tests."""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from orchard.core.errors import TaskRefused
from orchard.tasks.model import requirement
from orchard.tasks.release_pair.pairs import Pair
from orchard.tasks.release_pair.sdist import Sdist
from orchard.tasks.tree import Tree
from orchard.tasks.uv import Platform, Request, canonical, locked, names_in

_TOOLS = ("pytest<8.4", "pip", "wheel", "editables")
_EARLIEST = datetime(2023, 7, 1, tzinfo=UTC)  # build tools of before do not know the Pythons of today's images
_SLACK = timedelta(days=1)  # releases that were made together
_GROUPS = ("test", "tests", "testing")
_FILES = (
    "requirements/tests.in", "requirements/test.in", "requirements/tests.txt", "requirements/test.txt",
    "tests/requirements.txt", "test-requirements.txt", "declared_requirements.txt", "requirements-test.txt",
    "requirements-tests.txt", "requirements_test.txt",
)  # fmt: skip


async def lock_for(pair: Pair, old: Sdist, new: Sdist, platform: Platform) -> str:
    """Return the lock of an environment in which the old tree installs and the new tests run, the library left out.

    What the tests declare is taken where it can be had; ``extra_requirements`` must be had.

    Raises:
        TaskRefused: it cannot be had, or something in it brings the library itself; reason ``dependencies``.
        Unavailable: the index cannot be reached.
    """
    needed = [*_TOOLS, *build_requirements(old.tree), f"{pair.package}=={pair.old}", *pair.extra_requirements]
    declared = list(declared_requirements(new.tree))
    before = max(new.uploaded + _SLACK, _EARLIEST) if new.uploaded else None
    try:
        lock = await locked(Request([*needed, *declared], platform, before, without=pair.package))
    except TaskRefused:
        if not declared:
            raise
        lock = await locked(Request(needed, platform, before, without=pair.package))
    if canonical(pair.package) in names_in(lock):
        raise TaskRefused(f"the environment would install {pair.package} itself", reason="dependencies", detail=lock)
    return lock


def build_requirements(tree: Tree) -> list[str]:
    """Return what the build back-end of ``tree`` asks for; setuptools where it names none (PEP 517)."""
    requires = _pyproject(tree).get("build-system", {}).get("requires")
    return [str(line) for line in requires] if requires else ["setuptools", "wheel"]


def declared_requirements(tree: Tree) -> Iterator[str]:
    """Yield what ``tree`` declares for its tests and is a requirement: extras, groups, requirement files, tox."""
    return filter(_valid, _declared(tree))


def _valid(line: str) -> bool:
    try:
        return bool(requirement(line))
    except ValueError:
        return False


def _declared(tree: Tree) -> Iterator[str]:
    pyproject = _pyproject(tree)
    for table in (
        pyproject.get("project", {}).get("optional-dependencies", {}),
        pyproject.get("dependency-groups", {}),
    ):
        for group in _GROUPS:
            yield from (line for line in table.get(group, []) if isinstance(line, str))
    for path in _FILES:
        if path in tree:
            yield from _plain(tree[path].data.decode("utf-8", "replace").splitlines())
            break
    if "tox.ini" in tree:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(tree["tox.ini"].data.decode("utf-8", "replace"))
        except configparser.Error:
            return
        yield from _plain(parser.get("testenv", "deps", fallback="").splitlines())


def _plain(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are requirements by themselves: no options, no factors, no other files."""
    for line in lines:
        text = line.split(" #")[0].strip()
        if text and not text.startswith(("#", "-", "{", ".")) and ":" not in text.split(";")[0]:
            yield text


def _pyproject(tree: Tree) -> Mapping[str, Any]:
    if "pyproject.toml" not in tree:
        return {}
    try:
        return tomllib.loads(tree["pyproject.toml"].data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskRefused(f"pyproject.toml cannot be read: {error}", reason="install_failed") from error
