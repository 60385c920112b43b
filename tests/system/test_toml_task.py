"""The example in our own format, from its folder to a verdict."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import CreateFailed
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.registry import grader
from orchard.sandbox import Orchard
from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.protocol import Backend
from orchard.sandbox.types import SandboxInfo, SandboxSpec
from orchard.tasks.model import Task
from orchard.tasks.registry import load_tasks

pytestmark = [pytest.mark.root, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples/tasks/slug-keeps-digits"


def test_gold_solves_it_nothing_does_not_and_the_agent_sees_no_secret(image_home: Path, debian_image: str) -> None:
    async def whole() -> tuple[Task, str, list[Reward]]:
        (source,) = load_tasks(str(EXAMPLE), image=debian_image)
        async with Orchard(backend=LocalBackend(LocalSettings(home=image_home))) as orchard:
            task = await source.prepare(orchard)
            async with orchard.sandbox(task.image) as box:
                seen = (await box.run("cat tests/*; ls; git log --oneline | wc -l", cwd=task.workdir)).check().text
            noted = Noting(orchard.backend)
            door = Orchard(backend=noted)
            patches = [(task.gold_patch or "").encode(), b""]
            grades = [grader("tests").grade(task, task.graders[0], Attempt(patch), door) for patch in patches]
            verdicts = list(await asyncio.gather(*grades))
            assert [spec.memory for spec in noted.specs] == [2 << 30] * 2
            return task, seen, verdicts

    task, seen, (gold, noop) = asyncio.run(whole())
    assert task.image.startswith("sha256:")
    assert "test_words" in seen
    assert not any(secret in seen for secret in ("test_digits_stay", "gold.patch", "task.toml", "instruction.md"))
    assert (gold.score, noop.score) == (1.0, 0.0), (gold, noop)
    assert [test["id"] for test in noop.evidence["tests"] if not test["ok"]] == [
        "tests/test_slug.py::test_digits_stay", "tests/test_slug.py::test_words_and_digits[Route 66-route-66]",
    ]  # fmt: skip


class Noting(Wrapped):
    """Notes what is made."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.specs: list[SandboxSpec] = []

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self.specs.append(spec)
        return await super().create(spec, key)


class Forgetful:
    """The backend after someone removed one image of its store."""

    def __init__(self, backend: LocalBackend, lost: str) -> None:
        self._backend, self._lost = backend, lost

    async def resolve_image(self, image: str) -> str | None:
        if image == self._lost:
            raise CreateFailed(f"no image {image}", reason="image_not_found")
        return await self._backend.resolve_image(image)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_an_image_that_is_gone_is_made_anew(image_home: Path, debian_image: str) -> None:
    backend = LocalBackend(LocalSettings(home=image_home))

    async def prepare() -> tuple[str, str, str, bool]:
        (source,) = load_tasks(str(EXAMPLE), image=debian_image)
        async with Orchard(backend=backend) as orchard:
            first = (await source.prepare(orchard)).image
            again = (await source.prepare(orchard)).image
        forgetful: Any = Forgetful(backend, first)
        async with Orchard(backend=forgetful) as orchard:
            task = await source.prepare(orchard)
            async with orchard.sandbox(task.image) as box:
                works = (await box.run(["python", "-m", "pytest", "-q", "tests"], cwd=task.workdir)).ok
        return first, again, task.image, works

    first, again, anew, works = asyncio.run(prepare())
    assert first == again
    assert anew != first
    assert works
