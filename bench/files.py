"""A file of 1 GiB into a sandbox and out of it: speed, and how far memory grows.

Orchard: ``box.upload`` and ``box.download``; direct, and through the service. Floor: ``cp`` in the same folder, warm.
Peers: SWE-ReX's ``upload`` (a copy in its own process) and ``read_file`` (all of it as text); mini-swe-agent has no
files.
"""

import asyncio
import os
import time
from pathlib import Path

from bench.frame import FLAT, MB, Batch, Peak, Row, Target, interleave, p50
from bench.place import Contestant, Place
from orchard.sandbox import Sandbox

SPEED = Target(300.0, at_most=False)
MEMORY = Target(FLAT)
INSIDE = "/bench.bin"
PIECE = 1 << 20
WAYS: tuple[str, ...] = ("direct", "through the service")


async def measure(place: Place) -> list[Row]:
    size = (4 if place.quick else 1024) * PIECE
    source, target = place.work / "source.bin", place.work / "target.bin"
    await asyncio.to_thread(_fill, source, size)
    remote, rex = await place.remote(), await place.peers("swe-rex")
    async with place.orchard.sandbox(place.debian) as near, remote.sandbox(place.debian) as far:
        boxes = dict(zip(WAYS, (near, far), strict=True))
        peaks = {"client": Peak(os.getpid()), "sandboxd": Peak(place.daemon(near.id)), "service": Peak(None)}
        peaks["service"] = Peak(place.service_pid)
        into = await _direction(place, boxes, (source, target), peaks, inward=True)
        out = await _direction(place, boxes, (source, target), peaks, inward=False)
        assert await asyncio.to_thread(_equal, source, target), "what came back differs"
    target.unlink()
    source.unlink()
    peers = {name: peer.peak / MB for name, peer in rex.items()}
    note = "largest growth of resident memory in any round; a peer's is that of read_file"
    memory = [
        Row(f"1 GiB file, either way, memory of {who}", peak.highest, "MB", _rounds(place), MEMORY,
            {"the file itself": size / MB}, peers, note)
        for who, peak in peaks.items()
    ]  # fmt: skip
    return into + out + memory


async def _direction(
    place: Place, boxes: dict[str, Sandbox], paths: tuple[Path, Path], peaks: dict[str, Peak], *, inward: bool
) -> list[Row]:
    source, target = paths
    contestants = {way: _moves(box, source if inward else target, peaks, inward) for way, box in boxes.items()}
    contestants["cp"] = _synced((await place.floor()).single("copy", source=str(source), target=str(target)))
    peer = await place.contestant("swe-rex")
    if peer:
        contestants["swe-rex"] = _synced(_peer(peer, source, target, inward))
    rounds = _rounds(place)
    seconds = await interleave(contestants, rounds)
    speed = {who: source.stat().st_size / MB / p50(times) for who, times in seconds.items()}
    peers = {"swe-rex": speed.get("swe-rex"), "mini-swe-agent": None}
    words = "into" if inward else "out of"
    return [
        Row(f"1 GiB file {words} a sandbox, {way}", speed[way], "MB/s", rounds, SPEED, {"cp": speed["cp"]}, peers)
        for way in WAYS
    ]


def _rounds(place: Place) -> int:
    return 1 if place.quick else 5


def _peer(peer: Contestant, source: Path, target: Path, inward: bool) -> Batch:
    if inward:
        return peer.single("put", source=str(source), target=str(target))
    return peer.single("get", source=str(source))


def _synced(batch: Batch) -> Batch:
    """What an earlier contestant left to be written is no business of the next one."""

    async def run(n: int) -> list[float]:
        await asyncio.to_thread(os.sync)
        return await batch(n)

    return run


def _moves(box: Sandbox, local: Path, peaks: dict[str, Peak], inward: bool) -> Batch:
    async def run(_: int) -> list[float]:
        for peak in peaks.values():
            peak.begin()
        start = time.perf_counter()
        if inward:
            await box.upload(local, INSIDE)
        else:
            await box.download(INSIDE, local)
        seconds = time.perf_counter() - start
        for peak in peaks.values():
            peak.end()
        return [seconds]

    return _synced(run)


def _fill(path: Path, size: int) -> None:
    piece = os.urandom(PIECE)
    with path.open("wb") as file:
        for _ in range(size // PIECE):
            file.write(piece)


def _equal(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while piece := left.read(PIECE):
            if piece != right.read(PIECE):
                return False
        return not right.read(1)
