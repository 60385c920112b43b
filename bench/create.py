"""Create to first command done, image present: busybox and Debian, one at a time.

Orchard: ``async with orchard.sandbox(image) as box: await box.run(["true"])``, up to the answer; deleting is
not counted. Floor: ``runc run`` of the same root with a bare spec that runs ``true``, to its end. Peers: a new
environment and its first command.
"""

import time
from pathlib import Path

from bench.frame import Batch, Row, Target, interleave, p50, p99
from bench.place import Place

TARGET = Target(70.0)


async def measure(place: Place) -> list[Row]:
    rows = await _one(place, "busybox", place.busybox, place.busybox_root)
    if place.debian != place.busybox:
        rows += await _one(place, "Debian", place.debian, place.debian_root)
    return rows


async def _one(place: Place, name: str, image: str, root: Path) -> list[Row]:
    async def orchard(n: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(n):
            start = time.perf_counter()
            async with place.orchard.sandbox(image) as box:
                (await box.run(["true"])).check()
                seconds.append(time.perf_counter() - start)
        return seconds

    contestants: dict[str, Batch] = {"orchard": orchard}
    if bundle := place.bundle(name, root, ["/bin/true"]):
        contestants["runc run"] = (await place.floor()).batch("runc", **bundle)
    for peer, process in (await place.peers()).items():
        contestants[peer] = process.batch("create")
    n = 3 if place.quick else 100
    seconds = await interleave(contestants, n)
    rows: list[Row] = []
    for share, of in (("p50", p50), ("p99", p99)):
        found = {who: of(times) * 1000 for who, times in seconds.items()}
        rows.append(
            Row(
                name=f"create to first command, {name}, {share}",
                value=found.pop("orchard"),
                unit="ms",
                n=n,
                target=TARGET if share == "p50" else None,
                floor={"runc run": found.pop("runc run", None)},
                peers={peer: found.get(peer) for peer in ("mini-swe-agent", "swe-rex")},
            )
        )
    return rows
