"""Run ``true`` in a living Pod, through ``orchard serve`` and straight to the Pod, beside the Pod's own fork.

Floor: fork and exec of /bin/true by a small Python inside the Pod. Peer: ``kubectl exec POD -- true`` on the same
machine. The service is a process on this machine, the Pod on a node of the cluster.
"""

import asyncio
import json
import time

from bench.frame import Batch, Row, Target, interleave, p50, p99
from bench.kubernetes.place import ClusterPlace
from bench.place import Place
from bench.run import runs
from orchard.sandbox import Sandbox
from orchard.sandbox.kubernetes.identity import name_of

BEYOND = Target(5.0)
FORKS = """
import json, os, sys, time
seconds = []
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    os.waitpid(pid, 0)
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""
FORK, EXEC = "the Pod's own fork", "kubectl exec"


async def measure(place: Place) -> list[Row]:
    rounds, each = (2, 5) if place.quick else (50, 20)
    async with ClusterPlace() as there:
        image, remote = there.cluster.image("debian"), there.client(await there.serve())
        async with there.direct.sandbox(image) as near, remote.sandbox(image) as far:
            contestants = {"through the service": runs(far), "straight to the Pod": runs(near)}
            contestants |= {FORK: _forks(far), EXEC: _kubectl(there, far)}
            seconds = await interleave(contestants, rounds, each)
    return rows(seconds)


def rows(seconds: dict[str, list[float]]) -> list[Row]:
    """Return the figures; the target is on what the service adds to the Pod's own fork."""
    made: list[Row] = []
    for way in ("through the service", "straight to the Pod"):
        for share, of in (("p50", p50), ("p99", p99)):
            ms = {who: of(times) * 1000 for who, times in seconds.items()}
            made.append(
                Row(f"run true, {way}, {share}", ms[way], "ms", len(seconds[way]),
                    floor={FORK: ms[FORK]}, peers={EXEC: ms[EXEC]})
            )  # fmt: skip
        beyond = (p50(seconds[way]) - p50(seconds[FORK])) * 1000
        made.append(Row(f"run true, {way}, beyond the Pod's own fork, p50", beyond, "ms", len(seconds[way]), BEYOND))
    return made


def _forks(box: Sandbox) -> Batch:
    async def run(n: int) -> list[float]:
        result = await box.run(["python3", "-c", FORKS, str(n)])
        return json.loads(result.check().stdout)

    return run


def _kubectl(there: ClusterPlace, box: Sandbox) -> Batch:
    """Once a turn, since it takes so much longer."""
    argv = [str(there.cluster.programs / "kubectl"), f"--kubeconfig={there.cluster.kubeconfig}", "-n", there.namespace]
    argv += ["exec", name_of(box.id), "-c", "sandbox", "--", "true"]

    async def run(_: int) -> list[float]:
        start = time.perf_counter()
        process = await asyncio.create_subprocess_exec(*argv)
        if await process.wait():
            raise RuntimeError(f"kubectl exec ended with {process.returncode}")
        return [time.perf_counter() - start]

    return run
