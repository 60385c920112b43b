"""Which pairs: one in the reference itself, or a list in TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

import packaging.version
from pydantic import AfterValidator, Field, ValidationError

from orchard.core.errors import InvalidArgument
from orchard.core.validation import first_fault
from orchard.tasks.model import Requirement, Strict, TaskLimits
from orchard.tasks.uv import canonical

KNOWN = "known"
_PAIR = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)@([A-Za-z0-9.!+_-]+?)\.\.([A-Za-z0-9.!+_-]+)")


def _release(text: str) -> str:
    try:
        packaging.version.Version(text)
    except packaging.version.InvalidVersion as error:
        raise ValueError(f"{text!r} is no version") from error
    return text


Release = Annotated[str, AfterValidator(_release)]


class Pair(Strict):
    """Two releases of a library, the older and the newer."""

    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    old: Release
    new: Release
    changelog: str | None = None
    """The project's own published entry, for releases whose source distribution has no changelog."""
    extra_requirements: list[Requirement] = Field(default_factory=list)
    """What the test suite needs and the source distribution does not declare."""
    limits: TaskLimits = TaskLimits()

    @property
    def id(self) -> str:
        """The task's id."""
        return f"{canonical(self.package)}@{self.old}..{self.new}"


class _PairFile(Strict):
    pair: list[Pair] = Field(min_length=1)


def known() -> Sequence[Pair]:
    """Return the pairs that come with Orchard, each with a clean signal."""
    text = resources.files("orchard.tasks").joinpath("data/release_pairs.toml").read_text()
    return _parse(text, "release_pairs.toml")


def read(reference: str) -> Sequence[Pair]:
    """Return the pairs of ``NAME@OLD..NEW``, of ``known``, or of a TOML file of ``[[pair]]``.

    Raises:
        InvalidArgument: neither, or a wrong key; file and key are named.
    """
    if reference == KNOWN:
        return known()
    match = _PAIR.fullmatch(reference)
    if match:
        try:
            pair = Pair(package=match[1], old=match[2], new=match[3])
        except ValidationError as error:
            raise InvalidArgument(f"{reference}: {first_fault(error.errors())[1]}", field="tasks") from error
        return [next((one for one in known() if one.id == pair.id), pair)]
    path = Path(reference)
    if not path.is_file():
        raise InvalidArgument(
            f"{reference!r} is neither NAME@OLD..NEW, nor {KNOWN!r}, nor a file of pairs", field="tasks"
        )
    return _parse(path.read_text(), str(path))


def _parse(text: str, where: str) -> Sequence[Pair]:
    try:
        return _PairFile.model_validate(tomllib.loads(text)).pair
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{where}: {error}", field=where) from error
    except ValidationError as error:
        key, words = first_fault(error.errors())
        raise InvalidArgument(f"{where}: {key}: {words}", field=key) from error
