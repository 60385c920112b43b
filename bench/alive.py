"""Many sandboxes alive at once: time until each has answered, the share that answers, memory each, time to delete.

Orchard: all are asked for at once (the local backend starts four at a time), each runs ``true``; then all are asked
again at once. Floor: as many idle ``runc run --detach`` of the same root with a bare spec, four at a time. Peers: as
many SWE-ReX bash sessions (32 threads), as many mini-swe-agent environments, which are objects and hold nothing.
Memory is what MemAvailable lost. Medians of three rounds, the peers' of one.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.frame import MB, Row, Target, p50, p99
from bench.machine import meminfo, private
from bench.place import Contestant, Place
from orchard.core.errors import OrchardError
from orchard.sandbox import Sandbox

SECONDS_EACH = 0.04
SHARE = Target(100.0, at_most=False)
MEMORY = Target(3.0)
ROUNDS, MANY = 3, 500
"""Orchard and the floor alternate so often, but once where there are more sandboxes than ``MANY``."""
SETTLE = 2.0
"""Seconds from the last answer until memory is read."""


@dataclass
class Crowd:
    """What one contestant needed for all of them."""

    seconds: float
    answered: int
    """Of the worst round."""
    mb_each: float
    mb_own: float = 0.0
    """Of it, what each sandboxd holds alone, whatever other programs do meanwhile; 0 where that cannot be seen."""


async def measure(place: Place, count: int = 200, peers: Sequence[str] = ("swe-rex", "mini-swe-agent")) -> list[Row]:
    count = 4 if place.quick else count
    ours: list[tuple[Crowd, list[float], float]] = []
    bare: list[Crowd | None] = []
    for _ in range(1 if place.quick or count > MANY else ROUNDS):
        bare.append(await _floor(place, count))
        ours.append(await _orchard(place, count))
    floors = {"runc run": _median([crowd for crowd in bare if crowd])}
    orchard, deleting = _median([one[0] for one in ours]), p50([one[2] for one in ours])
    asked = [seconds for one in ours for seconds in one[1]]
    assert orchard is not None
    others = {name: await _peer(place, name, count) for name in peers}
    answers = {name: crowd.answered / count * 100 if crowd else None for name, crowd in others.items()}
    title = f"{count} sandboxes alive"
    return [
        Row(f"{title}, all have answered after", orchard.seconds, "s", count, Target(SECONDS_EACH * count),
            _seconds(floors), _seconds(others)),
        Row(f"{title}, share that answers", orchard.answered / count * 100, "%", count, SHARE, peers=answers),
        Row(f"{title}, memory each by MemAvailable", orchard.mb_each, "MB", count, MEMORY,
            _mb(floors), _mb(others)),
        Row(f"{title}, private memory of each sandboxd", orchard.mb_own, "MB", count),
        Row(f"{title}, run true among them, p50", p50(asked) * 1000, "ms", count),
        Row(f"{title}, run true among them, p99", p99(asked) * 1000, "ms", count),
        Row(f"{title}, all deleted after", deleting, "s", count),
    ]  # fmt: skip


def _median(crowds: Sequence[Crowd]) -> Crowd | None:
    """Return the median of each figure, but the worst share that answered."""
    if not crowds:
        return None
    seconds, held = p50([crowd.seconds for crowd in crowds]), p50([crowd.mb_each for crowd in crowds])
    return Crowd(seconds, min(crowd.answered for crowd in crowds), held, p50([crowd.mb_own for crowd in crowds]))


def _seconds(crowds: Mapping[str, Crowd | None]) -> dict[str, float | None]:
    return {name: crowd.seconds if crowd else None for name, crowd in crowds.items()}


def _mb(crowds: Mapping[str, Crowd | None]) -> dict[str, float | None]:
    return {name: crowd.mb_each if crowd else None for name, crowd in crowds.items()}


async def _orchard(place: Place, count: int) -> tuple[Crowd, list[float], float]:
    await _delete([await place.orchard.create(place.busybox)])  # the layers and the threads are there
    before, start = meminfo("MemAvailable"), time.perf_counter()
    boxes = await asyncio.gather(*(_made(place) for _ in range(count)))
    seconds = time.perf_counter() - start
    try:
        answered = sum(await asyncio.gather(*map(_answers, boxes)))
        await asyncio.sleep(SETTLE)
        held = before - meminfo("MemAvailable")
        own = sum(private(place.daemon(box.id)) for box in boxes)
        asked: list[float] = []
        for box in boxes:
            begun = time.perf_counter()
            await box.run(["true"])
            asked.append(time.perf_counter() - begun)
    finally:
        start = time.perf_counter()
        await _delete(boxes)
    return Crowd(seconds, answered, held / MB / count, own / MB / count), asked, time.perf_counter() - start


async def _made(place: Place) -> Sandbox:
    box = await place.orchard.create(place.busybox, create_timeout=600)
    await _answers(box)
    return box


async def _answers(box: Sandbox) -> bool:
    try:
        return (await box.run(["true"])).exit_code == 0
    except OrchardError:
        return False


async def _delete(boxes: list[Sandbox]) -> None:
    await asyncio.gather(*(box.delete() for box in boxes))


async def _floor(place: Place, count: int) -> Crowd | None:
    bundle = place.bundle("idle", place.busybox_root, ["/bin/sleep", "3600"])
    if bundle is None:
        return None
    floor = await place.floor()
    crowd = await _crowd(floor, count, **bundle)
    await floor.call("release", state=bundle["state"], count=count)
    return crowd


async def _peer(place: Place, name: str, count: int) -> Crowd | None:
    peer = await place.contestant(name, fresh=True)
    if peer is None:
        return None
    crowd = await _crowd(peer, count)
    await peer.close()
    return crowd


async def _crowd(contestant: Contestant, count: int, **request: str) -> Crowd:
    before = meminfo("MemAvailable")
    answer = await contestant.call("alive", count=count, **request)
    await asyncio.sleep(SETTLE)
    held = before - meminfo("MemAvailable")
    return Crowd(answer["seconds"][0], answer["answered"], held / MB / count)
