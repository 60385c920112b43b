"""What a harness brings into its sandboxes, and what it needs of the image, in whole rollouts."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support import toy
from tests.support.toy import MEND, Flaky

from orchard.evals.run import evaluate
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.harness.registry import HARNESSES
from orchard.rollout.folder import read_run
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.tools import add
from orchard.trajectories import RolloutRecord

pytestmark = pytest.mark.root


class Equipped(Flaky):
    """Does its work by a program of its own tool layer."""

    name = "equipped"
    layer: ClassVar[Path]
    needs: Sequence[str] = ("sh", "cat")

    async def tools(self) -> Sequence[str]:
        return [add("mender", self.layer)]

    async def run(self, request: HarnessRequest) -> HarnessResult:
        (await request.box.run(["mend"], cwd=request.workdir)).check()
        return HarnessResult(Stop.SUBMITTED)


@pytest.fixture
async def orchard(local_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchard]:
    toy.register()
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(HARNESSES, "equipped", f"{__name__}:Equipped")
    program = tmp_path / "layer" / "bin" / "mend"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho mended > note\n")
    program.chmod(0o755)
    monkeypatch.setattr(Equipped, "layer", tmp_path / "layer", raising=False)
    async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as door:
        yield door


async def one(folder: Path, orchard: Orchard) -> RolloutRecord:
    await evaluate(replace(toy.plan(folder, 1, MEND), harnesses=["equipped"]), orchard)
    with read_run(folder) as run:
        [record] = run.records()
    return record


async def test_the_tools_of_a_harness_are_in_its_sandbox_and_in_the_record(orchard: Orchard, tmp_path: Path) -> None:
    record = await one(tmp_path / "run", orchard)
    assert (record.reward, record.tries) == (1.0, 1)
    assert record.environment["tools"] == [add("mender", Equipped.layer)]


async def test_an_image_without_what_the_harness_needs_is_refused_by_name(
    orchard: Orchard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Equipped, "needs", ("sh", "no-such-a", "cat", "no-such-b"))
    record = await one(tmp_path / "run", orchard)
    assert record.failure is not None
    assert (record.failure.seam, record.failure.reason, record.tries) == ("harness", "image_unfit", 1)
    for word in ("'host'", "no-such-a, no-such-b", "equipped"):
        assert word in record.failure.text
