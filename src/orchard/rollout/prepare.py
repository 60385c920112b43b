"""Preparing tasks: each once for all its rollouts, a few at a time, and a little ahead of the agents."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from orchard.rewards.registry import grader
from orchard.rollout.boundary import RolloutFailed, boundary
from orchard.rollout.jobs import Bounds, Event, Job, Observe, pause
from orchard.sandbox import Orchard
from orchard.tasks.model import Task

KEPT = 256
"""Most prepared tasks in memory; an older one is prepared anew from its cache, which is quick."""


class Preparation:
    """The prepared tasks of one run."""

    def __init__(self, orchard: Orchard, bounds: Bounds, observe: Observe) -> None:
        self._orchard, self._bounds, self._observe = orchard, bounds, observe
        self._slots = asyncio.Semaphore(bounds.prepare)
        self._tasks: OrderedDict[str, asyncio.Task[Task]] = OrderedDict()
        self._lead = asyncio.Semaphore(bounds.prepare)
        self._untouched: set[str] = set()

    async def task(self, job: Job) -> Task:
        """Return the prepared task of ``job``.

        Raises:
            RolloutFailed: it could not be prepared, nor will it be for another rollout of this process.
        """
        name = job.source.id
        if name in self._untouched:
            self._untouched.discard(name)
            self._lead.release()
        return await asyncio.shield(self._begun(job))

    async def go_ahead(self, jobs: Iterable[Job]) -> None:
        """Prepare the tasks of ``jobs`` in order, at most ``bounds.prepare`` that no rollout has asked for yet."""
        for job in jobs:
            if job.source.id not in self._tasks:
                await self._lead.acquire()
                if job.source.id in self._tasks:  # a rollout was quicker
                    self._lead.release()
                    continue
                self._untouched.add(job.source.id)
                await asyncio.wait([self._begun(job)])

    async def close(self) -> None:
        """Cancel what is being prepared."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    def _begun(self, job: Job) -> asyncio.Task[Task]:
        name = job.source.id
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._prepare(job), name=f"prepare {name}")
            for old in [key for key, task in self._tasks.items() if task.done()][: len(self._tasks) - KEPT]:
                del self._tasks[old]
        self._tasks.move_to_end(name)
        return self._tasks[name]

    async def _prepare(self, job: Job) -> Task:
        async with self._slots:
            for failures in range(1, self._bounds.tries + 1):
                try:
                    with boundary("prepare"):
                        task = await job.source.prepare(self._orchard)
                        for spec in task.graders:
                            grader(spec.type)  # one that there is not is known before any agent works
                    self._observe(Event("prepared", job))
                    return task
                except RolloutFailed as error:
                    if not error.again or failures == self._bounds.tries:
                        raise
                    self._observe(Event("failed", job, error.failure))
                    await asyncio.sleep(pause(self._bounds, failures))
        raise AssertionError("tries >= 1")
