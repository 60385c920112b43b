"""A Pod from the request to a daemon that answers, and where the time goes.

Orchard straight to the API server, with ``network="open"``, with ``none``, the default, which is ready only once its
network is seen to be shut, and of an image that is not on the nodes: 6 MB in a registry on this machine. Floor: a Pod
of the same image with nothing of ours in it, by the same client, until its kubelet calls it Ready. They take turns;
removal is not counted. Parts are medians, so they do not add up exactly.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, TypeAlias

from bench.frame import Batch, Row, interleave, p50
from bench.kubernetes.place import BarePods, ClusterPlace
from bench.place import Place
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes.creating import Split

Network: TypeAlias = Literal["open", "none"]
Image: TypeAlias = Callable[[], AbstractAsyncContextManager[str]]
"""Gives the image of one create."""
PARTS = {
    ("queue",): "queue: until its turn",
    ("image",): "image: until the registry has told of it",
    ("api",): "API: until the API server has the Pod",
    ("schedule",): "schedule: until a node has it",
    ("prepare",): "prepare: until network and daemon are in it",
    ("pull", "start"): "pull and start: until the daemon answers",
}
"""Fields of ``Split`` -> what they are; the daemon often answers before the status tells that the image is there."""
BARE, OPEN, NONE, ABSENT = "bare Pod", "network open", "network none", "image not on the node"


async def measure(place: Place) -> list[Row]:
    many, few = (1, 1) if place.quick else (20, 6)
    async with ClusterPlace() as there:
        tap, bare = _Tap(), await there.bare("busybox")
        (await there.live()).maker.on_split = tap.take

        @asynccontextmanager
        async def present() -> AsyncGenerator[str]:
            yield there.cluster.image("busybox")

        def orchard(network: Network, image: Image) -> Batch:
            return _creates(there.direct, image, network)

        contestants = {OPEN: orchard("open", present), NONE: orchard("none", present), BARE: _bare(bare, present)}
        rows = await _phase(tap, contestants, many)
        pulled = {ABSENT: orchard("open", there.fresh_image), BARE: _bare(bare, there.fresh_image)}
        return rows + await _phase(tap, pulled, few)


async def _phase(tap: "_Tap", contestants: dict[str, Batch], rounds: int) -> list[Row]:
    seconds = await interleave({name: tap.on(name, batch) for name, batch in contestants.items()}, rounds)
    rows: list[Row] = []
    for name in contestants:
        if name != BARE:
            rows += rows_of(name, seconds[name], seconds[BARE], tap.splits[name][1:])
    return rows


def rows_of(name: str, took: list[float], bare: list[float], splits: list[Split]) -> list[Row]:
    """Return the figures of one contestant: median, slowest, and the medians of the parts."""
    title, n = f"create to ready, {name}", len(took)
    rows = [
        Row(f"{title}, p50", p50(took), "s", n, floor={BARE: p50(bare)}),
        Row(f"{title}, slowest", max(took), "s", n, floor={BARE: max(bare)}),
    ]
    spent = {words: p50([sum(getattr(split, name) for name in names) for split in splits])
             for names, words in PARTS.items()}  # fmt: skip
    rows += [Row(f"{title}, of it {words}", seconds, "s", n) for words, seconds in spent.items()]
    return rows


class _Tap:
    """Puts each split where its contestant's are."""

    def __init__(self) -> None:
        self.splits: dict[str, list[Split]] = {}
        self._name = ""

    def take(self, split: Split) -> None:
        self.splits.setdefault(self._name, []).append(split)

    def on(self, name: str, batch: Batch) -> Batch:
        async def run(n: int) -> list[float]:
            self._name = name
            return await batch(n)

        return run


def _creates(orchard: Orchard, image: Image, network: Network) -> Batch:
    async def run(_: int) -> list[float]:
        async with image() as reference:
            start = time.perf_counter()
            box = await orchard.create(reference, network=network)
            seconds = time.perf_counter() - start
            await box.delete()
        return [seconds]

    return run


def _bare(pods: BarePods, image: Image) -> Batch:
    async def run(_: int) -> list[float]:
        async with image() as reference:
            names, seconds = await pods.make(1, reference)
            await pods.remove(names)
        return [seconds]

    return run
