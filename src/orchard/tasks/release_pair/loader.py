"""From a pair of releases to a task: sources, environment, image, discovery; each step cached by what goes into it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchard.sandbox import Orchard
from orchard.tasks.base import base_image
from orchard.tasks.build import Recipe, base_digest, build, image_name, probe, recall, remember
from orchard.tasks.cache import place
from orchard.tasks.model import GraderSpec, Task, TestPlan
from orchard.tasks.protocol import LoadOptions, TaskSource
from orchard.tasks.release_pair import changelog, instruction
from orchard.tasks.release_pair.diff import Difference, difference
from orchard.tasks.release_pair.discovery import Sides, Signal, discover
from orchard.tasks.release_pair.pairs import Pair, read
from orchard.tasks.release_pair.requirements import lock_for
from orchard.tasks.release_pair.sdist import Sdist, fetch
from orchard.tasks.suite import Suite
from orchard.tasks.tree import Tree, is_test, suite_roots

KIND = "release-pair"
WORKDIR = "/testbed"
DISCOVERY = 3
"""Version of how tests are chosen and tasks are worded; part of the cache's key."""


def load(reference: str, options: LoadOptions) -> Sequence[TaskSource]:
    """Return a source for each pair of ``NAME@OLD..NEW``, of ``known``, or of a TOML file of ``[[pair]]``.

    Raises:
        InvalidArgument: the reference or the file is wrong.
    """
    return [PairSource(pair, options.image) for pair in read(reference)]


@dataclass(frozen=True)
class PairSource:
    """A pair, to be prepared."""

    pair: Pair
    image: str | None
    """Base image; None: the small Debian that Orchard makes."""

    @property
    def id(self) -> str:
        """The task's id."""
        return self.pair.id

    async def prepare(self, orchard: Orchard) -> Task:
        """See ``TaskSource.prepare``."""
        old, new = await asyncio.gather(
            fetch(self.pair.package, self.pair.old), fetch(self.pair.package, self.pair.new)
        )
        text = instruction.of(self.pair, self._changes(new), WORKDIR)
        change = difference(old.tree, new.tree, self.pair.old, self.pair.new)
        recipe = await self._recipe(orchard, old, new)
        kept = _kept(recipe, new, self.pair)
        if known := await recall(orchard, kept):
            return Task.model_validate_json(known[1])
        task = await self._make(orchard, recipe, new, change, text)
        remember(kept, task.image, task.model_dump_json().encode())
        return task

    def _changes(self, new: Sdist) -> str:
        if self.pair.changelog is not None:
            return changelog.cleaned(self.pair.changelog)
        return changelog.entry(new.tree, self.pair.old, self.pair.new)

    async def _recipe(self, orchard: Orchard, old: Sdist, new: Sdist) -> Recipe:
        base = await base_digest(orchard, self.image or await base_image(orchard))
        platform = await probe(orchard, base)
        lock = await lock_for(self.pair, old, new, platform)
        title = f"{old.package} {old.version}"
        return Recipe(base, WORKDIR, old.tree, title, lock=lock, platform=platform, editable=True)

    async def _make(self, orchard: Orchard, recipe: Recipe, new: Sdist, change: Difference, text: str) -> Task:
        digest = await build(orchard, recipe, image_name(self.pair.id, recipe))
        limits = self.pair.limits
        roots = suite_roots(new.tree)
        files = {path for tree in (recipe.tree, new.tree) for path in tree if path.endswith(".py")}
        sides = Sides(digest, change.test_files, tuple(change.deleted_tests), change.gold_patch, limits)
        suite = Suite(roots, WORKDIR, _python(), files, limits.grade_seconds)
        signal = await discover(orchard, sides, suite)
        return self._task(digest, text, change, _plan(roots, change, signal, recipe), new)

    def _task(self, digest: str, text: str, change: Difference, plan: TestPlan, new: Sdist) -> Task:
        source = {
            "package": self.pair.package, "old": self.pair.old, "new": self.pair.new, "sdist_sha256": new.sha256,
            "gold_files": change.code_files,
        }  # fmt: skip
        return Task(
            id=self.id, kind=KIND, instruction=text, image=digest, workdir=WORKDIR, limits=self.pair.limits,
            graders=[GraderSpec(type="tests")], gold_patch=change.gold_patch,
            secret={"tests": plan.model_dump(mode="json")}, source=source,
        )  # fmt: skip


def _plan(roots: list[str], change: Difference, signal: Signal, recipe: Recipe) -> TestPlan:
    return TestPlan(
        run=roots, fail_to_pass=signal.fail_to_pass, pass_to_pass=signal.pass_to_pass, deleted=change.deleted_tests,
        files=change.test_files, protected=_protected(recipe.tree, roots), python=_python(),
    )  # fmt: skip


def _protected(tree: Tree, roots: list[str]) -> list[str]:
    """Return the old tests that lie outside of what is run as a whole."""
    return sorted(path for path in tree if is_test(path) and not any(path.startswith(f"{root}/") for root in roots))


def _python() -> str:
    return TestPlan.model_fields["python"].default


def _kept(recipe: Recipe, new: Sdist, pair: Pair) -> Path:
    facts = json.dumps([DISCOVERY, recipe.key(), new.sha256, pair.model_dump(mode="json")])
    return place(f"prepared/{KIND}", facts)
