"""Each harness mends the toy with its own tools, and its record is complete: calls, tools, patch, its own file."""

import pytest
from tests.harness.conftest import EVERY, Play, said

from orchard.harness import check as toy
from orchard.harness.registry import create_harness

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@pytest.mark.parametrize("harness", EVERY, indirect=True)
async def test_its_record_is_complete(harness: str, play: Play) -> None:
    ran = await play(harness)
    assert ran.report.ok, ran.told()
    [main] = [branch for branch in ran.found.branches() if branch.leaf.purpose == "agent"]
    assert said(ran, main) == list(toy.SAYS), ran.told()
    assert ran.record.harness_version == await create_harness(harness).version()
    assert ran.record.reward == 1.0
