"""The example in our own format, from its folder to a verdict."""

import asyncio
from pathlib import Path

import pytest

from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.registry import grader
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
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
            patches = [(task.gold_patch or "").encode(), b""]
            grades = [grader("tests").grade(task, task.graders[0], Attempt(patch), orchard) for patch in patches]
            return task, seen, list(await asyncio.gather(*grades))

    task, seen, (gold, noop) = asyncio.run(whole())
    assert task.image.startswith("sha256:")
    assert "test_words" in seen
    assert not any(secret in seen for secret in ("test_digits_stay", "gold.patch", "task.toml", "instruction.md"))
    assert (gold.score, noop.score) == (1.0, 0.0), (gold, noop)
    assert [test["id"] for test in noop.evidence["tests"] if not test["ok"]] == [
        "tests/test_slug.py::test_digits_stay", "tests/test_slug.py::test_words_and_digits[Route 66-route-66]",
    ]  # fmt: skip
