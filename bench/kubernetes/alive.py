"""Many real Pods at once through ``orchard serve``: all ready after, the share that answers, deleted after.

All are asked for at once, ``creates`` of the settings (32) are in the making at the same moment, each runs ``true``.
Floor: as many Pods of the same image with nothing of ours in them, asked for at once by the same client, until their
kubelets call them Ready, and until they are gone. Sandboxes have no network: each is ready once that is seen.
"""

import statistics

from bench.frame import Row, Target, p50, p99
from bench.kubernetes.crowd import Crowd, spec
from bench.kubernetes.place import ClusterPlace
from bench.place import Place

SHARE = Target(100.0, at_most=False)


async def measure(place: Place, count: int = 100) -> list[Row]:
    count = 4 if place.quick else count
    async with ClusterPlace() as there:
        remote, image = there.client(await there.serve()), there.cluster.image("busybox")
        warm = await Crowd.make(remote, spec(image), 2)
        await warm.delete()
        floor = await there.bare("busybox")
        names, ready = await floor.make(count)
        gone = await floor.remove(names)
        crowd = await Crowd.make(remote, spec(image), count)
        answers, together = await crowd.at_once()
        alone = await crowd.in_turn(count)
        deleting = await crowd.delete()
    title, note = f"{count} Pods at once", f"first failure: {crowd.failures[0]}" if crowd.failures else ""
    return [
        Row(f"{title}, all have answered after", crowd.seconds, "s", count, floor={"bare Pods": ready}, note=note),
        Row(f"{title}, share that answers", crowd.share(answers), "%", count, SHARE),
        Row(f"{title}, a create, mean", statistics.mean(crowd.creates), "s", count),
        Row(f"{title}, run true in all at once, mean", statistics.mean(answers) * 1000, "ms", count),
        Row(f"{title}, run true in all at once, p99", p99(answers) * 1000, "ms", count),
        Row(f"{title}, run true in all at once, commands a second", len(answers) / together, "1/s", count),
        Row(f"{title}, run true in one after another, p50", p50(alone) * 1000, "ms", count),
        Row(f"{title}, run true in one after another, p99", p99(alone) * 1000, "ms", count),
        Row(f"{title}, all deleted after", deleting, "s", count, floor={"bare Pods": gone}),
    ]
