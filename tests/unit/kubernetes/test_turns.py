"""Who comes next, and whether a Pod could ever be placed."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from orchard.sandbox.kubernetes.capacity import exceeds, quantity
from orchard.sandbox.kubernetes.settings import NodeSize
from orchard.sandbox.kubernetes.turns import Turns


async def test_tenants_are_served_in_turn() -> None:
    turns, order = Turns(1), list[str]()

    async def work(tenant: str) -> None:
        async with turns.turn(tenant[0]):
            order.append(tenant)

    async with turns.turn("first"):
        tasks = [asyncio.ensure_future(work(name)) for name in ("a1", "a2", "a3", "b1", "c1", "b2")]
        await asyncio.sleep(0)
        assert turns.waiting == 6
    await asyncio.gather(*tasks)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_turn_that_is_ended_early_is_given_once() -> None:
    turns = Turns(1)
    async with turns.turn("slow") as end:
        end()
        end()
        async with turns.turn("next"):
            following = asyncio.ensure_future(_take(turns))
            await asyncio.sleep(0)
            assert turns.waiting == 1
        await following
    async with turns.turn("last"):
        assert turns.waiting == 0


async def _take(turns: Turns) -> None:
    async with turns.turn("third"):
        return


async def test_no_more_than_the_bound_at_once_and_none_is_lost_by_cancelling() -> None:
    turns, now, most = Turns(3), 0, 0

    async def work() -> None:
        nonlocal now, most
        async with turns.turn("t"):
            now += 1
            most = max(most, now)
            try:
                await asyncio.sleep(0)
            finally:
                now -= 1

    tasks = [asyncio.ensure_future(work()) for _ in range(30)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert turns.waiting == 0
    async with asyncio.timeout(5), turns.turn("a"), turns.turn("b"), turns.turn("c"):
        assert not any(task.cancelled() for task in tasks[1::2])


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", "2"), ("100m", "0.1"), ("1.5Gi", str(3 << 29)), ("129e6", "129000000"), ("1k", "1000"), ("7M", "7000000")],
)
def test_quantities_are_read_as_kubernetes_does(text: str, number: str) -> None:
    assert quantity(text) == Decimal(number)


def node(cpu: str, memory: str, disk: str) -> dict[str, Any]:
    return {"status": {"allocatable": {"cpu": cpu, "memory": memory, "ephemeral-storage": disk}}}


@pytest.mark.parametrize(
    ("asked", "largest", "never"),
    [
        ({"cpu": "2", "memory": "1Gi"}, None, False),
        ({"cpu": "2", "memory": "3Gi"}, None, True),  # each is there, but on no one node
        ({"cpu": "2", "memory": "3Gi"}, NodeSize(4, 4 << 30), False),
        ({"cpu": "5", "memory": "1"}, NodeSize(4, 4 << 30), True),
        ({"cpu": "2", "ephemeral-storage": "10Gi"}, None, False),
        ({"cpu": "2", "ephemeral-storage": "11Gi"}, None, True),
        ({"cpu": "2", "ephemeral-storage": "11Gi"}, NodeSize(4, 4 << 30), False),  # a new one may have it
        ({"example.com/gpu": "1"}, None, False),  # a plugin of the node may tell of it later
        ({}, None, False),
    ],
)
def test_only_what_no_node_could_hold_is_hopeless(asked: dict[str, str], largest: NodeSize | None, never: bool) -> None:
    pod = {"spec": {"containers": [{"resources": {"requests": asked}}]}}
    assert exceeds(pod, [node("2", "2Gi", "10Gi"), node("1", "8Gi", "20Gi")], largest) is never


def test_without_any_node_nobody_knows() -> None:
    pod = {"spec": {"containers": [{"resources": {"requests": {"cpu": "99"}}}]}}
    assert not exceeds(pod, [], None)
