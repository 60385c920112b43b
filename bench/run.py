"""Run ``true`` in a living sandbox, by the public SDK: direct, and through the service.

Floor: fork and exec of /bin/true from a small Python, and posix_spawn. Peers: mini-swe-agent's ``execute`` (through a
shell, its only way) and SWE-ReX's ``execute``; neither isolates.
"""

import time

from bench.frame import Batch, Row, Target, interleave, p50, p99
from bench.place import Place
from orchard.sandbox import Sandbox

DIRECT = {"p50": Target(3.0), "p99": Target(15.0)}
SERVICE = {"p50": Target(6.0), "p99": Target(18.0)}
ADDED = Target(3.0)
FLOORS = ("fork+exec", "posix_spawn")
PEERS = ("mini-swe-agent", "swe-rex")


async def measure(place: Place) -> list[Row]:
    remote, floor = await place.remote(), await place.floor()
    async with place.orchard.sandbox(place.debian) as near, remote.sandbox(place.debian) as far:
        contestants = {"direct": runs(near), "service": runs(far)}
        contestants |= {"fork+exec": floor.batch("fork"), "posix_spawn": floor.batch("spawn")}
        contestants |= {name: peer.batch("run") for name, peer in (await place.peers()).items()}
        rounds, each = (3, 5) if place.quick else (100, 20)
        seconds = await interleave(contestants, rounds, each)
    rows: list[Row] = []
    for way, targets in (("direct", DIRECT), ("service", SERVICE)):
        words = "direct" if way == "direct" else "through the service"
        rows += [_row(f"run true, {words}, {share}", way, share, seconds, targets[share]) for share in ("p50", "p99")]
    added = (p50(seconds["service"]) - p50(seconds["direct"])) * 1000
    return [*rows, Row("run true, added by the service, p50", added, "ms", rounds * each, ADDED)]


def _row(name: str, way: str, share: str, seconds: dict[str, list[float]], target: Target) -> Row:
    found = {who: (p50 if share == "p50" else p99)(times) * 1000 for who, times in seconds.items()}
    return Row(
        name=name,
        value=found[way],
        unit="ms",
        n=len(seconds[way]),
        target=target,
        floor={who: found[who] for who in FLOORS},
        peers={who: found.get(who) for who in PEERS},
    )


def runs(box: Sandbox) -> Batch:
    async def run(n: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(n):
            start = time.perf_counter()
            result = await box.run(["true"])
            seconds.append(time.perf_counter() - start)
            result.check()
        return seconds

    return run
