"""The rollout engine: jobs go in, closing records come out; bounded, resumable, one failure never another's.

A rollout is closed by one record, written at once. Whatever dies before that record does so as if it had never begun:
its session stays as *aborted*, its sandbox ends by its lease or by the next process's sweep, and the rollout is run
anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any

from orchard.core.errors import MachineUnfit, NotFound, OrchardError, Unavailable, text_of
from orchard.core.tasks import finish, unwrapped
from orchard.gateway import Gateway
from orchard.harness.protocol import Harness
from orchard.harness.registry import create_harness
from orchard.rollout.attempt import Attempts, Tried
from orchard.rollout.boundary import RolloutFailed, boundary
from orchard.rollout.closing import Progress, closing_record
from orchard.rollout.facts import task_facts
from orchard.rollout.folder import RunFolder
from orchard.rollout.jobs import Bounds, Event, Job, Observe, pause
from orchard.rollout.prepare import Preparation
from orchard.sandbox import Orchard
from orchard.tasks.model import Task
from orchard.tasks.protocol import TaskSource
from orchard.trajectories import Failure

log = logging.getLogger(__name__)


class RolloutEngine:
    """Runs the jobs of one run.

    Args:
        folder: the open run.
        orchard: makes the sandboxes.
        gateway: records into ``folder.store``.
        bounds: how much at once, how many tries.
        observe: told of every step; must not block.
    """

    def __init__(
        self, folder: RunFolder, orchard: Orchard, gateway: Gateway, bounds: Bounds, observe: Observe = lambda _: None
    ) -> None:
        self._folder, self._bounds, self._observe = folder, bounds, observe
        # an agent's, a grader's and a preparation's sandbox alike bear the run's label, by which a sweep finds them
        self._orchard = Orchard(backend=orchard.backend, labels={"run": folder.id})
        self._attempts = Attempts(folder, self._orchard, gateway, bounds)
        self._preparation = Preparation(self._orchard, bounds, observe)
        self._broken_in_a_row = 0
        self._harnesses: dict[str, asyncio.Task[tuple[Harness, str]]] = {}

    async def run(self, jobs: Iterable[Job], ahead: Iterable[Job] = (), *, retry_broken: bool = False) -> None:
        """Close every job that is not closed yet; returns when all are.

        Args:
            jobs: taken one by one, in order.
            ahead: the same jobs once more, if tasks are to be prepared while agents work on those before.
            retry_broken: also run what was closed with a failure; a record without one then takes its place.

        Raises:
            StoreFailed: a closing record could not be written; the run stops, and can be resumed.
            MachineUnfit: this machine lacks something that every rollout needs; nothing is closed for it.
            Unavailable: ``give_up`` rollouts in a row failed for good.
            InvalidArgument: no such harness.
            Conflict: a task is no longer what it was when the run began.
        """
        await sweep(self._orchard, self._folder.id)
        closed = self._folder.closed(broken=not retry_broken)
        queue = self._open(jobs, closed)
        still_open = (job for job in ahead if job.rollout_id(self._folder.id) not in closed)
        going_ahead = asyncio.create_task(self._preparation.go_ahead(still_open), name="prepare ahead")
        try:
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._bounds.run + self._bounds.grade):
                        group.create_task(self._work(queue))
        finally:
            await finish(self._end(going_ahead))

    async def _end(self, going_ahead: asyncio.Task[None]) -> None:
        """End what the rollouts shared; where one end fails, the others still come."""
        shared = [going_ahead, *self._harnesses.values()]
        for task in shared:
            task.cancel()
        await asyncio.gather(*shared, return_exceptions=True)
        await _ended("the preparation", self._preparation.close())
        for name, installed in self._harnesses.items():
            if not installed.cancelled() and installed.exception() is None:
                await _ended(f"harness {name}", installed.result()[0].close())
        await _ended("the way to the sandboxes", self._orchard.close())

    def _open(self, jobs: Iterable[Job], closed: set[str]) -> Iterator[Job]:
        for job in jobs:
            if job.rollout_id(self._folder.id) in closed:
                self._observe(Event("known", job))
            else:
                yield job

    async def _work(self, queue: Iterator[Job]) -> None:
        for job in queue:
            await self._close(job)

    async def _close(self, job: Job) -> None:
        """Run one job to its closing record."""
        progress = Progress(job)
        try:
            start = time.monotonic()
            with boundary("harness"):
                harness, progress.harness_version = await self._harness(job.harness)
            progress.task = task = await self._preparation.task(job)
            self._folder.facts.hold({f"task {job.source.id}": task_facts(task)})
            progress.prepare_seconds = time.monotonic() - start
            self._observe(Event("started", job))
            await self._until_done(progress, task, harness)
        except RolloutFailed as error:
            if isinstance(error.__cause__, MachineUnfit):
                raise error.__cause__ from error
            progress.failure = error.failure
        record = closing_record(self._folder.id, progress)
        await self._folder.store.append(record)
        self._observe(Event("closed", job, record.failure, record))
        self._count(record.failure)

    def _count(self, failure: Failure | None) -> None:
        broken = failure is not None and failure.seam not in ("prepare", "grade")  # those are a task's own
        self._broken_in_a_row = self._broken_in_a_row + 1 if broken else 0
        if failure is not None and self._broken_in_a_row >= self._bounds.give_up:
            words = (
                f"{self._broken_in_a_row} rollouts in a row failed for good, the last at {failure.seam}: {failure.text}"
            )
            hint = "mend that; the same command goes on with the rollouts that are open"
            raise Unavailable(words, reason=failure.reason, hint=hint)

    async def unchanged(self, sources: Iterable[TaskSource]) -> None:
        """Return if each task that the run has used before is what it was then; preparing those again is quick.

        Raises:
            Conflict: one is not; the message says what of it.
        """
        async with self._orchard:
            for source in sources:
                if not self._folder.facts.knows(f"task {source.id}"):
                    continue
                try:
                    with boundary("prepare"):
                        task = await source.prepare(self._orchard)
                except RolloutFailed as error:  # its open rollouts meet the same trouble, and are closed with it
                    log.warning("task %s could not be compared with what the run was made with: %s", source.id, error)
                    continue
                self._folder.facts.hold({f"task {source.id}": task_facts(task)})

    async def _until_done(self, progress: Progress, task: Task, harness: Harness) -> None:
        """Try until one try ends without trouble, or no further one is due."""
        while True:
            progress.tries += 1
            progress.last = tried = Tried()
            try:
                await self._attempts.attempt(progress.job, task, harness, progress.tries, tried)
                return
            except RolloutFailed as error:
                if not error.again or progress.tries >= self._bounds.tries:
                    raise
                self._observe(Event("failed", progress.job, error.failure))
            finally:
                if tried.session:
                    progress.sessions.append(tried.session)
            await asyncio.sleep(pause(self._bounds, progress.tries))

    async def _harness(self, name: str) -> tuple[Harness, str]:
        """Return the driver, its program installed, and that program's version: once for all rollouts."""
        if name not in self._harnesses:
            self._harnesses[name] = asyncio.create_task(_installed(name), name=f"install {name}")
        return await asyncio.shield(self._harnesses[name])


async def _installed(name: str) -> tuple[Harness, str]:
    harness = create_harness(name)
    await harness.install()
    return harness, await harness.version()


async def _ended(what: str, end: Coroutine[Any, Any, None]) -> None:
    try:
        await end
    except Exception as error:  # noqa: BLE001 - of a driver, which may raise anything; all rollouts are closed
        log.warning("%s could not be closed: %s", what, text_of(error))


async def sweep(orchard: Orchard, run: str) -> int:
    """Delete what an earlier process of ``run`` left in sandboxes; return how many there were."""
    left = await orchard.list({"run": run})

    async def end(sandbox_id: str) -> None:
        with suppress(NotFound):
            await orchard.delete(sandbox_id)

    outcomes = await asyncio.gather(*(end(info.id) for info in left), return_exceptions=True)
    for info, outcome in zip(left, outcomes, strict=True):
        if isinstance(outcome, OrchardError):
            log.warning("sandbox %s of a dead process could not be deleted; its lease ends it: %s", info.id, outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
    return len(left)
