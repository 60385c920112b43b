"""The task: what is to be done, with its image, set-up, and how it is graded."""

from __future__ import annotations

import base64
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import packaging.requirements
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from orchard.core.errors import InvalidArgument
from orchard.sandbox.types import parse_memory


class Strict(BaseModel):
    """Base of the models here: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _content(value: object) -> object:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


Content = Annotated[
    bytes,
    BeforeValidator(_content),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), return_type=str, when_used="json"),
]
"""Bytes of a file; base64 text where it is stored as JSON."""


ID = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$"
"""Of a task; it stands in file names, labels and tables."""
DEFAULT_MEMORY = "2GiB"
"""Of a sandbox in which a task's tests are found, an agent works or a grader judges."""


def _size(value: str) -> str:
    try:
        parse_memory(value)
    except InvalidArgument as error:
        raise ValueError(error.message) from error
    return value


def requirement(text: str) -> str:
    """Return ``text``, if it is a requirement of a Python package by itself (PEP 508).

    Raises:
        ValueError: it is none.
    """
    try:
        packaging.requirements.Requirement(text)
    except packaging.requirements.InvalidRequirement as error:
        raise ValueError(f"{text!r} is no requirement: {str(error).splitlines()[0]}") from error
    return text


Requirement = Annotated[str, AfterValidator(requirement)]


class TaskLimits(Strict):
    """Bounds of one rollout of the task; ``boxes.bounds`` makes options of a sandbox of them."""

    turns: int = Field(default=50, gt=0)
    seconds: float = Field(default=1800.0, gt=0)
    command_seconds: float = Field(default=120.0, gt=0)
    grade_seconds: float = Field(default=600.0, gt=0)
    cpu: float | None = Field(default=None, gt=0)
    memory: Annotated[str, AfterValidator(_size)] | None = None
    """``4GiB``; by default ``DEFAULT_MEMORY``, where the backend can limit memory at all."""
    pids: int = Field(default=4096, gt=0)


class GraderSpec(Strict):
    """Which grader, by its name in ``orchard.rewards.registry``, with its options."""

    type: str
    weight: float = Field(default=1.0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)


def relative(path: str) -> str:
    """Return a path in the work tree in its plain form.

    Raises:
        ValueError: it is absolute, leads out, or names a test rather than a file.
    """
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "::" in path:
        raise ValueError(f"{path!r} is no file or folder relative to the work tree")
    return pure.as_posix() + ("/" if path.endswith("/") and path.strip("./") else "")


Relative = Annotated[str, AfterValidator(relative)]


class TestNames(Strict):
    """Which tests make the verdict, and what holds them. Paths are relative to the work tree."""

    __test__ = False

    run: list[Relative] = Field(min_length=1)
    """Files and folders given to pytest; ``.`` is all of the work tree."""
    fail_to_pass: list[str] = Field(min_length=1)
    """Ids (``path::Class::name[parameters]``) that must pass; they fail before the fix."""
    pass_to_pass: list[str] = Field(default_factory=list)
    """Ids that must still pass."""
    deleted: list[Relative] = Field(default_factory=list)
    """Test files that must not be there."""
    protected: list[Relative] = Field(default_factory=list)
    """Further paths, or folders ending in ``/``, that an attempt may not change; tests and settings of pytest and
    tox always are."""

    def covers(self, path: str) -> bool:
        """True if ``path`` is among what pytest is given."""
        return any(path == root or path.startswith(f"{root}/") or root == "." for root in self.roots)

    @property
    def roots(self) -> list[str]:
        """``run`` without trailing slashes."""
        return [entry.rstrip("/") for entry in self.run]


class TestPlan(TestNames):
    """What the ``tests`` grader needs; stands in ``Task.secret["tests"]``."""

    files: dict[Relative, Content] = Field(default_factory=dict, repr=False)
    """Whole contents of the test files, written over whatever stands there."""
    python: str = "/opt/venv/bin/python"
    """Interpreter in the image that has pytest."""


class Task(Strict):
    """One thing to be done, prepared. Nothing in ``secret`` ever reaches the agent's sandbox or the model."""

    id: str = Field(pattern=ID)
    kind: str
    """Which loader made it: ``release-pair``, ``toml`` …."""
    instruction: str = Field(min_length=1)
    image: str
    """Digest from which discovery, agent and grader all start (an image's own name where nothing was prepared)."""
    workdir: str = "/testbed"
    limits: TaskLimits = TaskLimits()
    network: Literal["none", "open"] = "none"
    graders: list[GraderSpec] = Field(min_length=1)
    gold_patch: str | None = Field(default=None, repr=False)
    """A patch that must score 1."""
    secret: dict[str, Any] = Field(default_factory=dict, repr=False)
    """What only graders see, JSON-serialisable, under the grader's name: ``TestPlan`` under ``tests`` …."""
    source: dict[str, Any] = Field(default_factory=dict)
    """Where it comes from: package, versions, hashes, licence."""
