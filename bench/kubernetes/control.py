"""The control path alone, at sizes that no machine here holds: simulated Pods of kwok behind the real API server.

Nobody answers at their addresses: a create is done once the Pod has one. Measured are creates and deletes a second,
the requests to the API server for each, and what a replica that starts over so many needs: the time until it knows
them all, and memory. Floors: bare Pods by the same client, a fifth as many and at most 1,000, before and beside these.
On our own cluster the nodes' firewalls rest meanwhile.
"""

import asyncio
import contextlib
import math
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.kubernetes.cluster.simulated import ROOM

from bench.frame import Row, status_kb
from bench.kubernetes.crowd import spec
from bench.kubernetes.place import IN_NAME_ONLY, ClusterPlace
from bench.place import Place
from orchard.sandbox.kubernetes.backend import Live
from orchard.sandbox.kubernetes.complaints import Complaints
from orchard.sandbox.kubernetes.creating import Maker
from orchard.sandbox.kubernetes.identity import ID
from orchard.sandbox.kubernetes.objects import Json
from orchard.sandbox.kubernetes.pod import notes
from orchard.sandbox.types import SandboxSpec

FLOOR_SHARE, FLOOR_MOST = 5, 1000
_TTL = 86400.0  # nobody renews these, and no replica is to reap them meanwhile


async def measure(place: Place, count: int = 1000) -> list[Row]:
    count = 20 if place.quick else count
    share = min(max(1, count // FLOOR_SHARE), FLOOR_MOST)
    async with ClusterPlace(IN_NAME_ONLY, simulated=1 + math.ceil(count / ROOM)) as there, _without_firewalls(there):
        floor = await there.bare("busybox")
        live = await there.live()
        names, bare = await floor.make(share)
        gone = await floor.remove(names)
        at_once, empty = await _replica(there)
        wanted = replace(spec(there.cluster.image("busybox"), "open"), ttl=_TTL)
        await live.images.for_pod(wanted.image, "")  # asked for once, however many sandboxes
        before, start = live.cluster.calls, time.perf_counter()
        ids = await _create(there, live, wanted, count)
        creating, asked = time.perf_counter() - start, live.cluster.calls - before
        known, full = await _replica(there)
        names, bare_beside = await floor.make(share)
        gone_beside = await floor.remove(names)
        before, start = live.cluster.calls, time.perf_counter()
        await _delete(there, live, ids)
        deleting, removed = time.perf_counter() - start, live.cluster.calls - before
    floors = [
        {"bare Pods": share / alone, "bare Pods beside all of these": share / beside}
        for alone, beside in ((bare, bare_beside), (gone, gone_beside))
    ]
    title = f"{count} simulated Pods"
    return [
        Row(f"{title}, creates a second", count / creating, "1/s", count, floor=floors[0]),
        Row(f"{title}, requests to the API server for a create", asked / count, "", count, floor={"bare Pods": 1.0}),
        Row(f"{title}, a replica that starts knows all after", known, "s", count, floor={"without Pods": at_once}),
        Row(f"{title}, memory of that replica", full, "MB", count, floor={"without Pods": empty}),
        Row(f"{title}, memory of that replica for each", (full - empty) * 1000 / count, "kB", count),
        Row(f"{title}, deletes a second", count / deleting, "1/s", count, floor=floors[1]),
        Row(f"{title}, requests to the API server for a delete", removed / count, "", count, floor={"bare Pods": 1.0}),
    ]


@contextlib.asynccontextmanager
async def _without_firewalls(there: ClusterPlace) -> AsyncGenerator[None]:
    """The nodes' firewalls rest: they look at all Pods when one comes, also at those that are nowhere."""
    with contextlib.ExitStack() as stack:
        for node in there.cluster.nodes if there.cluster.ours else ():
            stack.enter_context(there.cluster.stopped(f"{node}-kube-router"))
        yield


async def _create(there: ClusterPlace, live: Live, wanted: SandboxSpec, count: int) -> Sequence[str]:
    async def answered(sandbox_id: str, address: str, network: str) -> None:
        """There is nobody to greet."""

    complaints = Complaints(live.cluster, live.cache)
    maker = Maker(there.settings, live.cluster, live.cache, live.key, answered, live.images.for_pod, complaints)
    run = secrets.token_hex(4)
    made: list[str] = []

    async def one(number: int) -> None:
        made.append((await maker.create(wanted, f"{run}-{number}"))[1].id)
        _tell("made", len(made), count)

    await asyncio.gather(*(one(number) for number in range(count)))
    return made


def _tell(what: str, number: int, count: int) -> None:
    """Say how far it is, ten times in all."""
    if number % max(1, count // 10) == 0:
        print(f"  {number} of {count} {what}", file=sys.stderr, flush=True)


async def _delete(there: ClusterPlace, live: Live, ids: Sequence[str]) -> None:
    """Delete all and return once the watch has told that they are gone."""
    left, gone = set(ids), asyncio.Event()

    def see(old: Json | None, new: Json | None) -> None:
        if old and not new and (who := notes(old).get(ID, "")) in left:
            left.remove(who)
            _tell("gone", len(ids) - len(left), len(ids))
            if not left:
                gone.set()

    live.cache.listeners.append(see)
    await asyncio.gather(*(there.backend.delete(each, wait=False) for each in ids))
    await gone.wait()


async def _replica(there: ClusterPlace) -> tuple[float, float]:
    """Start a service; return the seconds until it has listed all Pods, and the MB that it holds then."""
    service = await there.serve()
    start = time.perf_counter()
    await there.client(service).list()
    known = time.perf_counter() - start
    held = status_kb(Path(f"/proc/{service.process.pid}"), "VmRSS")
    await service.end()
    return known, held * 1024 / 1e6
