"""Real harnesses: samples a rollout of each, why it forks, how much of it comes again; 64 at once in sealed sandboxes.

Each harness that is installed mends the toy of ``orchard harness check`` against a scripted model with token ids. A
rollout whose history only grows is one sample; a sample a call is what a gateway without a tree gives. One is run
again, answered from its record: at so many of its turns it can be branched. 64 at once: a rollout each, from the
sandbox to the record, on all of them together; the harness is the first of ``CROWD`` that is installed here.
"""

import asyncio
import os
import time
from pathlib import Path

from bench.frame import Row
from bench.place import Place
from orchard.core.errors import MachineUnfit, Unsupported
from orchard.gateway import Gateway
from orchard.harness.registry import HARNESSES, create_harness
from orchard.rollout.check import toy_job
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import open_run
from orchard.rollout.jobs import Bounds, Job
from orchard.rollout.rerun import Rerun, rerun
from orchard.rollout.toy_model import ToyModel
from orchard.trajectories import Trajectory
from orchard.trajectories.stats import stats

CROWD = ("codex", "mini-swe-agent")
QUICK = ("bash-loop", "command")


async def installed(names: list[str]) -> list[str]:
    """Return those of the harnesses that this machine has, or can have."""
    found: list[str] = []
    for name in names:
        try:
            driver = create_harness(name)
            await driver.install()
            await driver.tools()
        except (MachineUnfit, Unsupported):
            continue
        found.append(name)
    return found


async def rollouts(place: Place, folder: Path, jobs: list[Job], at_once: int) -> list[Trajectory]:
    """Run the jobs; return their trajectories, all of them without a failure of infrastructure."""
    with open_run(folder) as run:
        async with Gateway(run.store, {}) as gateway:
            await RolloutEngine(run, place.orchard, gateway, Bounds(run=at_once, grade=2, tries=1)).run(jobs)
        found = [run.store.trajectory(job.rollout_id(run.id)) for job in jobs]
    broken = [one.rollout.failure for one in found if one.rollout and one.rollout.failure]
    assert not broken, f"{len(broken)} of {len(found)} rollouts broke: {broken[0]}"
    return found


async def again(place: Place, folder: Path, job: Job) -> Rerun:
    """Run one of the run's closed jobs again, answered from its record."""
    with open_run(folder) as run:
        async with Gateway(run.store, {}) as gateway:
            return await rerun(run, place.orchard, gateway, job)


def jobs_of(place: Place, harness: str, count: int) -> list[Job]:
    engine = ToyModel()
    first = toy_job(harness, engine, image=place.debian if not place.quick else None)
    return [Job(first.source, harness, first.policy, attempt, first.config) for attempt in range(count)]


async def measure(place: Place) -> list[Row]:
    names = list(QUICK) if place.quick else await installed(sorted(HARNESSES))
    count, rows = (1 if place.quick else 3), list[Row]()
    for name in names:
        folder, jobs = place.work / f"run-{name}", jobs_of(place, name, count)
        found = await rollouts(place, folder, jobs, 1)
        rows += [samples_of(name, found), branches_of(name, await again(place, folder, jobs[0]))]
    return rows


def samples_of(name: str, found: list[Trajectory]) -> Row:
    [one] = stats(found)
    forks = ", ".join(f"{number} {cause}" for cause, number in one.forks.most_common()) or "none"
    beside = {purpose: number for purpose, number in one.purposes.items() if purpose != "agent"}
    seconds = sum(each.rollout.seconds["harness"] for each in found if each.rollout) / len(found)
    note = (
        f"{name}: forks {forks}; calls beside the work {beside or 'none'}; {one.trained_tokens} of"
        f" {one.sampled_tokens} sampled tokens trained, in samples of {one.sample_tokens} in all; {seconds:.1f} s"
    )
    return Row(
        f"{name}, samples a rollout", one.samples / len(found), "samples", len(found), floor={"append-only": 1.0},
        peers={"one a call": one.calls / len(found)}, note=note,
    )  # fmt: skip


def branches_of(name: str, found: Rerun) -> Row:
    return Row(
        f"{name}, prefixes that come again, clock pinned", 100 * found.pinned.share, "%", found.pinned.calls,
        peers={"word for word": 100 * found.exact.share},
        note=f"{name}, run again: other words by {' and '.join(found.but_for)}" if found.but_for else "",
    )  # fmt: skip


async def crowd(place: Place) -> list[Row]:
    """Measure many of one harness at once."""
    count = 4 if place.quick else 64
    names = ["command"] if place.quick else await installed(list(CROWD))
    if not names:
        return [Row(f"{count} harnesses at once", None, "s", 0, note="no harness for it can be installed here")]
    name = names[0]
    await rollouts(place, place.work / "run-first", jobs_of(place, name, 1), 1)  # what is made once is made
    free = _available()
    least = [free]
    watching = asyncio.create_task(_watch(least))
    start = time.perf_counter()
    try:
        found = await rollouts(place, place.work / "run-crowd", jobs_of(place, name, count), count)
    finally:
        watching.cancel()
    seconds = time.perf_counter() - start
    whole = sum(one.rollout is not None and one.rollout.reward == 1.0 for one in found)
    assert whole == count, f"{whole} of {count} mended the toy"
    memory = (free - min(least)) / count / 1e6
    title = f"{count} rollouts of {name} at once, sealed, all mended and recorded"
    note = (
        f"{os.cpu_count()} cores; {memory:.0f} MB of memory each at most, {seconds / count:.2f} s of the machine each"
    )
    return [Row(title, seconds, "s", count, note=note), Row(f"memory of each of {count} at once", memory, "MB", count)]


async def _watch(least: list[int]) -> None:
    while True:
        least.append(_available())
        await asyncio.sleep(0.2)


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
