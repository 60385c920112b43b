"""Each harness mends the toy with its own tools, and its record is complete: calls, tools, patch, its own file."""

from pathlib import Path

import pytest
from tests.harness.conftest import EVERY, Play, said

from orchard.harness import check as toy
from orchard.harness.registry import create_harness
from orchard.sandbox.conformance.roots import special_images

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@pytest.mark.parametrize("harness", EVERY, indirect=True)
async def test_its_record_is_complete(harness: str, play: Play) -> None:
    ran = await play(harness)
    assert ran.report.ok, ran.told()
    [main] = [branch for branch in ran.found.branches() if branch.leaf.purpose == "agent"]
    assert said(ran, main) == list(toy.SAYS), ran.told()
    assert ran.record.harness_version == await create_harness(harness).version()
    assert ran.record.reward == 1.0


def is_inside(name: str) -> bool:
    return create_harness(name).placement == "inside" and name != "command"


@pytest.mark.parametrize("harness", [name for name in EVERY if is_inside(name)], indirect=True)
async def test_in_a_root_of_busybox_alone_it_works_or_is_refused_by_name(
    harness: str, play: Play, tmp_path: Path
) -> None:
    ran = await play(harness, image=special_images(tmp_path / "images")["busybox"])
    missing = set(create_harness(harness).needs) - {"sh"}
    if not missing:
        assert ran.report.ok, ran.told()
        return
    assert ran.record.failure is not None
    assert (ran.record.failure.seam, ran.record.failure.reason) == ("harness", "image_unfit"), ran.told()
    assert all(name in ran.record.failure.text for name in missing)
    assert not ran.found.calls, "no model was asked"
