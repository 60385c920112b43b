"""A thousand sandboxes with a live data path: simulated Pods behind the real API server, a real sandboxd for each.

kwok plays the node; each Pod has an address of its own on loopback, where a sandboxd runs with the Pod's own
configuration as a process of this machine. Creates and deletes take the whole way: ``orchard serve``, API server,
scheduler, watch; commands go from the client by the service to the Pod's address. What is not there: kubelets, images,
isolation. All run on this machine: client, service, control plane and daemons.
"""

import statistics

from bench.frame import Peak, Row, Target, p50, p99
from bench.kubernetes.crowd import Crowd, spec
from bench.kubernetes.place import IN_NAME_ONLY, ClusterPlace
from bench.kubernetes.shadows import Shadows
from bench.machine import private
from bench.place import Place

SHARE, MEAN = Target(100.0, at_most=False), Target(280.0)
UPSTREAM = "upstream, as published"
AT_A_TIME = 64
PUBLISHED = {"end to end": 26.0, "create": 11.75, "command": 280.0, "rate": 154.0, "share": 100.0}
"""Of 1,000 sandboxes on its cluster: seconds, seconds, milliseconds, commands a second, percent."""


async def measure(place: Place, count: int = 1000) -> list[Row]:
    count = 10 if place.quick else count
    async with ClusterPlace(IN_NAME_ONLY, simulated=1) as there:
        service = await there.serve()
        remote, wanted = there.client(service), spec(there.cluster.image("busybox"), "open")
        live = await there.live()
        await live.cache.synced()
        shadows = Shadows(live.cache, there.work)
        try:
            await (await Crowd.make(remote, wanted, 2)).delete()
            peak = Peak(service.process.pid)
            peak.begin()
            crowd = await Crowd.make(remote, wanted, count)
            await crowd.at_once()  # connections are made
            answers, together = await crowd.at_once()
            few, _ = await crowd.at_once(AT_A_TIME)
            alone = await crowd.in_turn(count)
            peak.end()
            own = sum(map(private, shadows.pids))
            deleting = await crowd.delete()
        finally:
            shadows.close()
    note = f"first failure: {crowd.failures[0]}" if crowd.failures else ""
    title, kept = f"{count} sandboxes", peak.highest or 0.0
    theirs = {name: {UPSTREAM: value} for name, value in PUBLISHED.items()}
    return [
        Row(f"{title}, all have answered after", crowd.seconds, "s", count, peers=theirs["end to end"], note=note),
        Row(f"{title}, share that answers", crowd.share(answers), "%", count, SHARE, peers=theirs["share"]),
        Row(f"{title}, a create, mean", statistics.mean(crowd.creates), "s", count, peers=theirs["create"]),
        Row(f"{title}, run true, {AT_A_TIME} at a time, mean", statistics.mean(few) * 1000, "ms", count, MEAN,
            peers=theirs["command"]),
        Row(f"{title}, run true, {AT_A_TIME} at a time, p99", p99(few) * 1000, "ms", count),
        Row(f"{title}, run true, all at once, mean", statistics.mean(answers) * 1000, "ms", count),
        Row(f"{title}, run true, all at once, p99", p99(answers) * 1000, "ms", count),
        Row(f"{title}, run true, all at once, commands a second", len(answers) / together, "1/s", count,
            peers=theirs["rate"]),
        Row(f"{title}, run true, one after another, mean", statistics.mean(alone) * 1000, "ms", count),
        Row(f"{title}, run true, one after another, p50", p50(alone) * 1000, "ms", count),
        Row(f"{title}, run true, one after another, p99", p99(alone) * 1000, "ms", count),
        Row(f"{title}, memory that the service needs for each", kept * 1000 / count, "kB", count),
        Row(f"{title}, private memory of each sandboxd", own / 1e6 / count, "MB", count),
        Row(f"{title}, all deleted after", deleting, "s", count),
    ]  # fmt: skip
