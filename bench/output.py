"""100 MB that a command writes, streamed to the client as it comes: speed, and how far memory grows.

Orchard: ``box.start`` of dd, iterated to the end; direct, and through the service. Floor: a Python that reads the same
dd from a pipe, 64 KiB at a time. Peers have no stream: they return the whole output at once.
"""

import os
import time
from collections.abc import Mapping

from bench.frame import FLAT, MB, Batch, Peak, Row, Target, interleave, p50
from bench.place import Contestant, Place
from orchard.sandbox import Sandbox

SPEED = Target(200.0, at_most=False)
MEMORY = Target(FLAT)
BLOCK = 65536


async def measure(place: Place) -> list[Row]:
    blocks = 16 if place.quick else 1526
    argv, size = ["dd", "if=/dev/zero", f"bs={BLOCK}", f"count={blocks}", "status=none"], blocks * BLOCK
    remote, floor, peers = await place.remote(), await place.floor(), await place.peers()
    async with place.orchard.sandbox(place.debian) as near, remote.sandbox(place.debian) as far:
        client, daemon = Peak(os.getpid()), Peak(place.daemon(near.id))
        far_client, service = Peak(os.getpid()), Peak(place.service_pid)
        contestants = {
            "direct": _streams(near, argv, size, (client, daemon)),
            "service": _streams(far, argv, size, (far_client, service)),
            "pipe": floor.single("output", argv=argv, size=size),
        }
        contestants |= {name: peer.single("output", argv=argv, size=size) for name, peer in peers.items()}
        rounds = 2 if place.quick else 9
        seconds = await interleave(contestants, rounds)
    speed = {who: size / MB / p50(times) for who, times in seconds.items()}
    others = {name: speed[name] for name in peers}
    rows = [
        Row(f"100 MB of output streamed, {words}", speed[way], "MB/s", rounds, SPEED, {"pipe": speed["pipe"]}, others)
        for way, words in (("direct", "direct"), ("service", "through the service"))
    ]
    held = {
        "client, direct": client, "sandboxd": daemon, "client, through the service": far_client, "service": service,
    }  # fmt: skip
    return rows + _memory(held, peers, rounds, size)


def _memory(held: Mapping[str, Peak], peers: Mapping[str, Contestant], rounds: int, size: int) -> list[Row]:
    note = "largest growth of resident memory in any round"
    floor = {"the output itself": size / MB}
    of_peers = {name: peer.peak / MB for name, peer in peers.items()}
    return [
        Row(f"100 MB of output streamed, memory of {who}", peak.highest, "MB", rounds, MEMORY, floor, of_peers, note)
        for who, peak in held.items()
    ]


def _streams(box: Sandbox, argv: list[str], size: int, peaks: tuple[Peak, Peak]) -> Batch:
    async def run(_: int) -> list[float]:
        for peak in peaks:
            peak.begin()
        got, start = 0, time.perf_counter()
        async for piece in await box.start(argv):
            got += len(piece.data)
        seconds = time.perf_counter() - start
        for peak in peaks:
            peak.end()
        assert got == size, f"{got} of {size} bytes"
        return [seconds]

    return run
