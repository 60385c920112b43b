"""A real bug of a real library: prepared, solved, and cheated at, in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.attempts import CASES, FAKE, into

from orchard.core.errors import TaskRefused
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.registry import grader
from orchard.rewards.tests import plan_of
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.tasks.model import Task
from orchard.tasks.registry import load_tasks
from orchard.tasks.release_pair.diff import file_patch
from orchard.tasks.tree import SourceFile

REACH = 'import socket; socket.create_connection(("1.1.1.1", 443), 3)'
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def backend(image_home: Path) -> LocalBackend:
    return LocalBackend(LocalSettings(home=image_home))


@pytest.fixture(scope="module")
def task(backend: LocalBackend, debian_image: str, tmp_path_factory: pytest.TempPathFactory) -> Task:
    async def prepare() -> Task:
        (source,) = load_tasks("release-pair:xmltodict@0.14.1..0.14.2", image=debian_image)
        async with Orchard(backend=backend) as orchard:
            return await source.prepare(orchard)

    return asyncio.run(prepare())


async def attempt(orchard: Orchard, task: Task, script: str) -> bytes:
    """Return the patch of an agent that does ``script``."""
    async with orchard.sandbox(task.image, network="none") as box:
        (await box.run(script, cwd=task.workdir)).check()
        return await box.diff(task.workdir)


async def graded(orchard: Orchard, task: Task, patch: bytes, *, gold: bool = False) -> Reward:
    return await grader("tests").grade(task, task.graders[0], Attempt(patch, gold=gold), orchard)


@pytest.fixture(scope="module")
def rewards(backend: LocalBackend, task: Task) -> dict[str, Reward]:
    """The reward of every case; a few at a time."""
    quick = task.model_copy(update={"limits": task.limits.model_copy(update={"grade_seconds": 30.0})})
    hasty = task.model_copy(update={"limits": task.limits.model_copy(update={"grade_seconds": 4.0})})

    async def everything() -> dict[str, Reward]:
        limit = asyncio.Semaphore(4)
        async with Orchard(backend=backend) as orchard:

            async def one(name: str) -> Reward:
                async with limit:
                    patch = await attempt(orchard, task, CASES[name].script)
                    return await graded(orchard, hasty if name == "endless loop" else quick, patch)

            found = await asyncio.gather(*(one(name) for name in CASES))
        return dict(zip(CASES, found, strict=True))

    return asyncio.run(everything())


@pytest.mark.parametrize("name", CASES)
def test_score_and_evidence(rewards: dict[str, Reward], name: str) -> None:
    reward, case = rewards[name], CASES[name]
    evidence = json.dumps(dict(reward.evidence))
    assert (reward.score, reward.missing) == (case.score, None), evidence[:3000]
    assert re.search(case.says, evidence), evidence[:3000]


def test_the_task_is_what_the_two_releases_say(task: Task) -> None:
    plan = plan_of(task)
    assert plan.fail_to_pass == [
        f"tests/test_xmltodict.py::XMLToDictTestCase::test_{name}_whitespace" for name in ("keep", "skip")
    ]
    assert len(plan.pass_to_pass) == 58
    assert task.image.startswith("sha256:")
    assert list(plan.files) == ["tests/test_xmltodict.py"]


def test_the_agent_sees_the_old_release_with_git_and_without_network(backend: LocalBackend, task: Task) -> None:
    async def look() -> dict[str, str]:
        async with Orchard(backend=backend) as orchard, orchard.sandbox(task.image, network="none") as box:
            commands = {
                "status": "git status --porcelain", "log": "git log --format=%s",
                "version": "cd / && python -c 'import xmltodict; print(xmltodict.__version__, xmltodict.__file__)'",
                "tests": "python -m pytest -q tests 2>&1 | tail -1", "pytest": "pytest --version",
                "new": "grep -c \"'emptya': None\" tests/test_xmltodict.py",
                "installed": "pip list 2>/dev/null | grep -i xmltodict",
            }  # fmt: skip
            commands["reach"] = f"python -c '{REACH}' 2>&1 | tail -1"
            return {name: (await box.run(command, cwd=task.workdir)).text.strip() for name, command in commands.items()}

    found = asyncio.run(look())
    assert found["status"] == ""
    assert found["log"] == "xmltodict 0.14.1"
    assert found["version"] == "0.14.1 /testbed/xmltodict.py"
    assert "passed" in found["tests"]
    assert "failed" not in found["tests"]
    assert found["pytest"].startswith("pytest 8.")
    assert found["new"] == "0"
    assert "/testbed" in found["installed"]
    assert found["reach"].startswith("OSError")


def test_the_second_time_is_the_same_image_and_makes_no_sandbox(
    backend: LocalBackend, task: Task, debian_image: str
) -> None:
    class Watched:
        """The same backend, in which nothing may be made."""

        def __getattr__(self, name: str) -> object:
            if name == "create":
                raise AssertionError("a sandbox was made")
            return getattr(backend, name)

    async def again() -> Task:
        (source,) = load_tasks("release-pair:xmltodict@0.14.1..0.14.2", image=debian_image)
        async with Orchard(backend=Watched()) as orchard:  # type: ignore[arg-type]
            return await source.prepare(orchard)

    assert asyncio.run(again()) == task


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("idna@3.6..3.7", "no_tests"),
        ("cachetools@5.3.2..5.3.3", "no_code_change"),
        ("xmltodict@0.13.0..0.14.0", "no_changelog_entry"),
        ("xmltodict@0.14.2..99.0", "no_sdist"),
    ],
)
def test_a_pair_without_a_signal_is_refused_with_the_reason(
    backend: LocalBackend, debian_image: str, pair: str, reason: str
) -> None:
    async def prepare() -> None:
        (source,) = load_tasks(f"release-pair:{pair}", image=debian_image)
        async with Orchard(backend=backend) as orchard:
            await source.prepare(orchard)

    with pytest.raises(TaskRefused) as caught:
        asyncio.run(prepare())
    assert caught.value.reason == reason


def run(backend: LocalBackend, task: Task, patch: bytes, *, gold: bool = False) -> Reward:
    async def once() -> Reward:
        async with Orchard(backend=backend) as orchard:
            return await graded(orchard, task, patch, gold=gold)

    return asyncio.run(once())


def test_a_plugin_announced_by_metadata_is_not_loaded(backend: LocalBackend, task: Task) -> None:
    patch = file_patch("evil.egg-info/PKG-INFO", None, SourceFile(b"Metadata-Version: 2.1\nName: evil\nVersion: 1\n"))
    patch += file_patch("evil.egg-info/entry_points.txt", None, SourceFile(b"[pytest11]\nevil = fake\n"))
    patch += file_patch("fake.py", None, SourceFile(FAKE.encode()))
    reward = run(backend, task, patch.encode())
    assert reward.score == 0
    assert "evil.egg-info" in reward.evidence["removed"]


def test_a_patch_that_does_not_apply_scores_nothing_in_the_tools_words(backend: LocalBackend, task: Task) -> None:
    head = "diff --git a/xmltodict.py b/xmltodict.py\n--- a/xmltodict.py\n+++ b/xmltodict.py\n"
    patch = head + "@@ -1 +1 @@\n-never was here\n+x\n"
    reward = run(backend, task, patch.encode())
    assert reward.score == 0
    assert reward.evidence["reason"] == "patch_failed"
    assert "xmltodict.py" in reward.evidence["detail"]


@pytest.mark.parametrize("path", ["../opt/venv/lib/python3.11/site-packages/sitecustomize.py", ".git/hooks/x"])
def test_a_patch_stays_in_the_work_tree(backend: LocalBackend, task: Task, path: str) -> None:
    reward = run(backend, task, file_patch(path, None, SourceFile(b"import os; os._exit(0)\n")).encode())
    assert reward.score == 0
    assert reward.evidence["reason"] == "patch_failed"


def test_infrastructure_trouble_is_missing_and_never_nothing(backend: LocalBackend, task: Task) -> None:
    lost = task.model_copy(update={"image": "sha256:" + "0" * 64})
    reward = run(backend, lost, b"")
    assert reward.score is None
    assert (reward.missing or "").startswith("create_failed")
    plan = plan_of(task).model_copy(update={"python": "/opt/venv/bin/nothing"})
    broken = task.model_copy(update={"secret": {"tests": plan.model_dump(mode="json")}})
    reward = run(backend, broken, b"")
    assert reward.score is None
    assert "program_not_found" in (reward.missing or "")


def test_gold_without_a_report_is_missing(backend: LocalBackend, task: Task) -> None:
    exiting = asyncio.run(_exiting(backend, task))
    assert run(backend, task, exiting).score == 0
    reward = run(backend, task, exiting, gold=True)
    assert reward.score is None
    assert "no report" in (reward.missing or "")


async def _exiting(backend: LocalBackend, task: Task) -> bytes:
    async with Orchard(backend=backend) as orchard:
        return await attempt(orchard, task, into("xmltodict.py", "import os; os._exit(0)"))


@pytest.fixture(scope="module", autouse=True)
def nothing_left(backend: LocalBackend) -> Iterator[None]:
    yield

    async def left() -> list[str]:
        async with Orchard(backend=backend) as orchard:
            return [box.id for box in await orchard.list()]

    assert asyncio.run(left()) == []
