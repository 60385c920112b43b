"""Our own task format: a folder with ``task.toml``, and files beside it.

```
task.toml
instruction.md     what the agent is told
work/              optional: the work tree, laid into ``workdir``
tests/             optional, secret: laid into ``workdir/tests`` for grading, never before
gold.patch         optional, secret: a patch of ``work/`` that must score 1
```
```toml
id = "slugify-keeps-digits"      # default: the folder's name
image = "registry/name:tag"      # default: the small Debian that Orchard makes
workdir = "/testbed"
network = "none"                 # of the agent's sandbox
requirements = ["pytest<8.4"]    # Python packages for /opt/venv, resolved on this machine, installed offline
install = false                  # install work/ in development mode into /opt/venv
setup = ["make build"]           # shell commands, run offline in workdir when the image is prepared

[limits]                         # of one rollout; see TaskLimits
turns = 30
seconds = 900
memory = "4GiB"                  # of each sandbox; default: 2GiB

[[graders]]                      # default: one of type "tests"
type = "tests"
weight = 1.0

[tests]                          # what the grader "tests" needs; see TestPlan
run = ["tests"]
fail_to_pass = ["tests/test_slug.py::test_digits"]
pass_to_pass = ["tests/test_slug.py::test_blanks"]
protected = []                   # further paths the agent may not change
python = "/opt/venv/bin/python"  # where requirements are given; else "python3"

[secret.NAME]                    # whatever another grader NAME needs
```
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from orchard.core.errors import InvalidArgument, TaskRefused
from orchard.core.validation import first_fault
from orchard.sandbox import Orchard
from orchard.tasks.base import base_image
from orchard.tasks.build import Recipe, base_digest, build, image_name, probe, recall, remember
from orchard.tasks.cache import place
from orchard.tasks.model import ID, GraderSpec, Requirement, Strict, Task, TaskLimits, TestNames, TestPlan
from orchard.tasks.protocol import LoadOptions, TaskSource
from orchard.tasks.tree import Tree, read_tree
from orchard.tasks.uv import Request, canonical, locked, names_in

KIND = "toml"
FILE = "task.toml"
_TOOLS = ("pip", "wheel", "editables", "setuptools")


class _Tests(TestNames):
    python: str | None = None


class _File(Strict):
    id: str | None = Field(default=None, pattern=ID)
    image: str | None = None
    workdir: str = Field(default="/testbed", pattern=r"^/.+")
    network: Literal["none", "open"] = "none"
    requirements: list[Requirement] = Field(default_factory=list)
    install: bool = False
    setup: list[str] = Field(default_factory=list)
    limits: TaskLimits = TaskLimits()
    graders: list[GraderSpec] = Field(default_factory=lambda: [GraderSpec(type="tests")], min_length=1)
    tests: _Tests | None = None
    secret: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class TomlSource:
    """One folder, read and checked."""

    id: str
    folder: Path
    file: _File
    instruction: str
    image: str | None
    gold_patch: str | None = field(default=None, repr=False)

    async def prepare(self, orchard: Orchard) -> Task:
        """See ``TaskSource.prepare``."""
        file = self.file
        base = await base_digest(orchard, file.image or self.image or await base_image(orchard))
        work = await asyncio.to_thread(read_tree, self.folder / "work")
        secret = dict(file.secret)
        if file.tests is not None:
            tests = await asyncio.to_thread(read_tree, self.folder / "tests")
            secret["tests"] = _plan(file, tests).model_dump(mode="json")
        return Task(
            id=self.id, kind=KIND, instruction=self.instruction, image=await self._image(orchard, base, work),
            workdir=file.workdir, limits=file.limits, network=file.network, graders=file.graders,
            gold_patch=self.gold_patch, secret=secret, source={"folder": self.folder.name},
        )  # fmt: skip

    async def _image(self, orchard: Orchard, base: str, work: Tree) -> str:
        """Return the digest of the image with everything in it, or the base's where nothing is to be added."""
        file = self.file
        if not (work or file.requirements or file.setup):
            return base
        platform = await probe(orchard, base) if file.requirements else None
        lock = None
        if platform is not None:
            library = library_in(work) if file.install else None
            lock = await locked(Request([*_TOOLS, *file.requirements], platform, without=library))
            if library and canonical(library) in names_in(lock):
                raise TaskRefused(f"the environment would install {library} itself", reason="dependencies")
        recipe = Recipe(base, file.workdir, work, self.id, lock, platform, file.install, tuple(file.setup))
        kept = place(f"prepared/{KIND}", recipe.key())
        if known := await recall(orchard, kept):
            return known[0]
        digest = await build(orchard, recipe, image_name(self.id, recipe))
        remember(kept, digest)
        return digest


def load(reference: str, options: LoadOptions) -> Sequence[TaskSource]:
    """Return the task of a ``task.toml`` or its folder, or those of every folder below one, by path.

    Raises:
        InvalidArgument: no such file, or something in it is wrong; file and key are named.
    """
    path = Path(reference)
    if path.is_file():
        return [_read(path, options)]
    if (path / FILE).is_file():
        return [_read(path / FILE, options)]
    found = sorted(path.rglob(FILE))
    if not found:
        raise InvalidArgument(f"there is no {FILE} in {path}", field="tasks")
    return [_read(one, options) for one in found]


def _read(path: Path, options: LoadOptions) -> TomlSource:
    folder = path.resolve().parent
    try:
        file = _File.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}", field=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}", field=str(path)) from error
    except ValidationError as error:
        key, words = first_fault(error.errors())
        raise InvalidArgument(f"{path}: {key}: {words}", field=key) from error
    _check(path, file)
    words = _text(folder / "instruction.md")
    if words is None or not words.strip():
        raise InvalidArgument(f"{folder / 'instruction.md'} is missing or empty", field="instruction.md")
    gold = _text(folder / "gold.patch")
    return TomlSource(file.id or folder.name, folder, file, words, options.image, gold)


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not UTF-8: {error}", field=path.name) from error


def _check(path: Path, file: _File) -> None:
    """Refuse what each key allows and all together do not."""
    if not re.fullmatch(ID, file.id or path.resolve().parent.name):
        raise InvalidArgument(f"{path}: id: the folder's name cannot be a task's", field="id", hint="give an id")
    if any(grader.type == "tests" for grader in file.graders) and file.tests is None:
        raise InvalidArgument(f"{path}: tests: the grader 'tests' needs this table", field="tests")
    if "tests" in file.secret:
        raise InvalidArgument(f"{path}: secret.tests: give [tests] instead", field="secret.tests")
    if file.install and not file.requirements:
        raise InvalidArgument(
            f"{path}: install: needs an environment", field="install", hint="give requirements, such as pytest"
        )


def _plan(file: _File, tests: Tree) -> TestPlan:
    assert file.tests is not None
    python = file.tests.python or ("/opt/venv/bin/python" if file.requirements else "python3")
    return TestPlan(
        **file.tests.model_dump(exclude={"python"}), python=python,
        files={f"tests/{name}": content.data for name, content in tests.items()},
    )  # fmt: skip


def library_in(work: Tree) -> str | None:
    """Return the name of the distribution in ``work``, where its pyproject tells it."""
    if "pyproject.toml" not in work:
        return None
    try:
        project = tomllib.loads(work["pyproject.toml"].data.decode()).get("project")
    except ValueError as error:  # of TOML or of UTF-8
        raise TaskRefused(f"work/pyproject.toml cannot be read: {error}", reason="dependencies") from error
    name = project.get("name") if isinstance(project, dict) else None
    return str(name) if name else None
