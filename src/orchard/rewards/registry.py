"""Graders: one line each."""

from __future__ import annotations

from collections.abc import Callable

from orchard.core.errors import InvalidArgument
from orchard.rewards.command import CommandGrader
from orchard.rewards.protocol import Grader
from orchard.rewards.tests import TestsGrader

GRADERS: dict[str, Callable[[], Grader]] = {
    "command": CommandGrader,
    "tests": TestsGrader,
}
"""``GraderSpec.type`` -> what makes the grader."""


def grader(name: str) -> Grader:
    """Return the grader called ``name``.

    Raises:
        InvalidArgument: there is none; the hint lists those there are.
    """
    if name not in GRADERS:
        raise InvalidArgument(f"no grader {name!r}", field="graders.type", hint=f"known: {', '.join(GRADERS)}")
    return GRADERS[name]()
