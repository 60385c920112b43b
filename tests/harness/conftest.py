"""The lane of the real harnesses: each program, in a sealed sandbox, against a scripted model in its own dialect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.harassed import Fault, Harassed, Slow

from orchard.core.errors import MachineUnfit, Unsupported
from orchard.gateway import Engine
from orchard.gateway.purpose import WORK
from orchard.harness.registry import HARNESSES, create_harness
from orchard.rollout.check import LIMITS, Report, ToyRepair, judge, toy_job
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import open_run
from orchard.rollout.jobs import Bounds
from orchard.rollout.toy_model import ToyModel
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.trajectories import Branch, RolloutRecord, Trajectory, to_samples
from orchard.trajectories.formats.conversations import answers

BUILT_APART = {"zeroclaw": "make harness-zeroclaw"}
"""Harnesses whose build is too long for a lane, and what builds each: used where it is there."""
EVERY = sorted(HARNESSES)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one harness on one worker: its program is installed once."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        item.add_marker(pytest.mark.xdist_group(str(params.get("harness", "others"))))


@cache
def cannot_run(name: str) -> str | None:
    """Say why a harness cannot be had on this machine; None where it can."""

    async def install() -> None:
        driver = create_harness(name)
        await driver.install()
        await driver.tools()

    try:
        asyncio.run(install())
    except (MachineUnfit, Unsupported) as error:
        return str(error)
    return None


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> str:
    """The name of a harness that is installed, given as the parameter."""
    name = str(request.param)
    if why := cannot_run(name):
        if name in BUILT_APART:
            pytest.skip(f"{name} is not built ({BUILT_APART[name]} builds it): {why}")
        if os.environ.get("CI"):
            pytest.fail(f"{name} cannot be installed: {why}")
        pytest.skip(f"{name} cannot be installed here: {why}")
    return name


@pytest.fixture
async def orchard(local_home: Path) -> AsyncIterator[Orchard]:
    async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as door:
        yield door
        assert await door.list() == []


@dataclass(frozen=True)
class Ran:
    """What one rollout of the toy repair came to."""

    report: Report
    found: Trajectory
    met: Sequence[Fault] = ()
    """The faults that its requests met."""

    @property
    def record(self) -> RolloutRecord:
        assert self.found.rollout is not None
        return self.found.rollout

    def told(self) -> str:
        """All that a person wants to see of a run that was not as it should be."""
        parts = [f"{line.name}: {line.verdict}, {line.detail}" for line in self.report.lines]
        calls = [
            f"call {call.index}: {call.status} {call.error_code or call.finish_reason} {call.matched} {call.purpose}"
            for call in self.found.calls
        ]
        return "\n".join([*parts, *calls, f"faults met: {list(self.met)}"])


def said(ran: Ran, branch: Branch) -> list[str]:
    """Return what the model says along a conversation; words repeated because the harness asks again count once."""
    calls = answers(ran.found, branch).values()
    return list(dict.fromkeys(str(call.answer["content"]) for call in calls if call.answer))


def trained_once(ran: Ran) -> None:
    """Every sampled token of the agent's and its sub-agents' whole answers is in the samples, and no other."""
    sampled = [len(call.sampled_ids or ()) for call in ran.found.calls if call.status == "ok" and call.purpose in WORK]
    samples = to_samples(ran.found)
    assert sum(sum(sample.mask) for sample in samples) == sum(sampled), ran.told()


Play = Callable[..., Awaitable[Ran]]


@pytest.fixture
async def play(orchard: Orchard, debian_image: str, tmp_path: Path) -> Play:
    """Run a harness on the toy repair; ``engine`` answers, and ``faults`` befall its requests."""
    folders = iter(range(99))

    async def run(
        harness: str, *, engine: Engine | None = None, faults: Sequence[Fault] = (), image: str = "",
        config: Mapping[str, Any] | None = None, seconds: float = LIMITS.seconds,
    ) -> Ran:  # fmt: skip
        slow = Slow(engine or ToyModel())
        job = toy_job(harness, slow, image=image or debian_image, config=config)
        job = replace(job, source=ToyRepair(image or debian_image, LIMITS.model_copy(update={"seconds": seconds})))
        with open_run(tmp_path / f"run-{next(folders)}") as folder:
            async with Harassed(folder.store, faults, slow) as gateway:
                await RolloutEngine(folder, orchard, gateway, Bounds(tries=1)).run([job])
            found = folder.store.trajectory(job.rollout_id(folder.id))
            return Ran(judge(folder, found), found, gateway.met)

    return run
