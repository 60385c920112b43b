"""Tests that must fail: whoever fakes verdicts in general, fakes theirs too.

They use each way in which tests usually find fault. A report that lacks one, or in which one did not fail, was not
written by an honest pytest over honest assertions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from orchard.tasks.junit import Case, Status

_SOURCE = """\
import unittest

import pytest


def test_raise():
    raise AssertionError({token!r})


def test_assert():
    assert {token!r} == ""


def test_raises():
    with pytest.raises(ValueError):
        pass


class TestUnit(unittest.TestCase):
    def test_equal(self):
        self.assertEqual({token!r}, "")

    def test_equal_dicts(self):
        self.assertEqual({{1: {token!r}}}, {{}})

    def test_true(self):
        self.assertTrue(False, {token!r})

    def test_in(self):
        self.assertIn({token!r}, [])

    def test_raises(self):
        with self.assertRaises(ValueError):
            pass
"""
_MUST_FAIL = (
    "test_raise", "test_assert", "test_raises", "TestUnit::test_equal", "TestUnit::test_equal_dicts",
    "TestUnit::test_true", "TestUnit::test_in", "TestUnit::test_raises",
)  # fmt: skip


def path_beside(run: Sequence[str], token: str) -> str:
    """Return where they go: into the first of the suite's folders, under a name that nothing can know beforehand."""
    first = PurePosixPath(run[0])
    folder = first.parent if first.suffix == ".py" else first
    return (folder / f"test_zz_{token}_test.py").as_posix()


def source(token: str) -> str:
    """Return the test file."""
    return _SOURCE.format(token=token)


def taken_out(cases: Mapping[str, Case], path: str) -> tuple[dict[str, Case], bool]:
    """Return the other cases, and whether every test of the canary failed."""
    honest = all(
        (case := cases.get(f"{path}::{name}")) is not None and case.status is Status.FAILED for name in _MUST_FAIL
    )
    return {name: case for name, case in cases.items() if not name.startswith(f"{path}::")}, honest
