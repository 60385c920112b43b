"""A Pod from the request to a daemon that answers, image present, and where the time goes.

Orchard straight to the API server, with ``network="open"`` and with ``none``, the default, which is ready only once
its network is seen to be shut. Floor: a Pod of the same image with nothing of ours in it, by the same client, until
its kubelet calls it Ready. They take turns; removal is not counted. Parts are medians, so they do not add up exactly.
"""

import time
from typing import Literal

from bench.frame import Batch, Row, interleave, p50, p99
from bench.kubernetes.place import ClusterPlace
from bench.place import Place
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes.creating import Split

PARTS = {
    "queue": "its turn",
    "image": "the registry has told of the image",
    "api": "the API server has the Pod",
    "schedule": "a node has it",
    "prepare": "its network is there and the daemon in it",
    "pull": "the image is there and its container started, as the status tells",
    "start": "the daemon answers",
}
NETWORKS: tuple[Literal["open", "none"], ...] = ("open", "none")


async def measure(place: Place) -> list[Row]:
    rounds = 2 if place.quick else 20
    async with ClusterPlace() as there:
        splits: dict[str, list[Split]] = {network: [] for network in NETWORKS}
        image, maker = there.cluster.image("busybox"), (await there.live()).maker
        contestants: dict[str, Batch] = {}
        for network in NETWORKS:
            contestants[network] = _creates(there.direct, image, network)
        contestants["bare Pod"] = (await there.bare("busybox")).batch()
        current = _Tap(splits)
        maker.on_split = current.take
        seconds = await interleave({name: current.on(name, batch) for name, batch in contestants.items()}, rounds)
    return _rows(seconds, {name: found[1:] for name, found in splits.items()})


class _Tap:
    """Puts each split where its contestant's are."""

    def __init__(self, splits: dict[str, list[Split]]) -> None:
        self._splits, self._name = splits, ""

    def take(self, split: Split) -> None:
        self._splits[self._name].append(split)

    def on(self, name: str, batch: Batch) -> Batch:
        async def run(n: int) -> list[float]:
            self._name = name
            return await batch(n)

        return run


def _creates(orchard: Orchard, image: str, network: Literal["open", "none"]) -> Batch:
    async def run(n: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(n):
            start = time.perf_counter()
            box = await orchard.create(image, network=network)
            seconds.append(time.perf_counter() - start)
            await box.delete()
        return seconds

    return run


def _rows(seconds: dict[str, list[float]], splits: dict[str, list[Split]]) -> list[Row]:
    rows: list[Row] = []
    bare = seconds["bare Pod"]
    for network in NETWORKS:
        mine = seconds[network]
        title = f"create to ready, network {network}"
        rows.append(Row(f"{title}, p50", p50(mine), "s", len(mine), floor={"bare Pod": p50(bare)}))
        rows.append(Row(f"{title}, p99", p99(mine), "s", len(mine), floor={"bare Pod": p99(bare)}))
        for name, words in PARTS.items():
            spent = p50([getattr(split, name) for split in splits[network]])
            rows.append(Row(f"{title}, of it {name}: until {words}", spent, "s", len(mine)))
    return rows
