"""A bound in time tells a slow backend from a slow machine."""

from collections.abc import Sequence

import pytest

from orchard.sandbox.conformance.context import NotHeld
from orchard.sandbox.conformance.pace import in_time


async def judged(*tries: tuple[float, float]) -> Sequence[tuple[float, float]]:
    """Return the tries that were not needed."""
    left = list(tries)

    async def probe() -> tuple[float, float]:
        return left.pop(0)

    await in_time(probe, 2.0, 5.0, "it")
    return left


async def test_a_slow_backend_fails_on_a_quick_machine_every_time() -> None:
    with pytest.raises(NotHeld, match=r"it took 3.00 s, and bare work 0.100 s; 2.50 s, .*; 2.01 s"):
        await judged((3.0, 0.1), (2.5, 0.1), (2.01, 0.1))


async def test_a_backend_that_is_much_slower_than_bare_work_fails_on_a_slow_machine_too() -> None:
    with pytest.raises(NotHeld):
        await judged((30.0, 1.0), (30.0, 1.0), (30.0, 1.0))


@pytest.mark.parametrize("tries", [[(1.9, 0.01)], [(4.0, 1.0)], [(9.0, 0.1), (1.0, 0.1)]])
async def test_a_slow_machine_and_a_moment_of_disturbance_fail_nobody(tries: list[tuple[float, float]]) -> None:
    assert await judged(*tries, (99.0, 0.0)) == [(99.0, 0.0)]
