"""One try of one rollout: session, sandbox, harness, patch, grade. Everything it opens is closed when it ends."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from orchard.core.errors import OrchardError
from orchard.gateway import Budget, Gateway, Session
from orchard.harness.needs import check_needs
from orchard.harness.protocol import Harness, HarnessLimits, HarnessRequest, HarnessResult, Stop
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.registry import grader
from orchard.rollout.boundary import RolloutFailed, boundary
from orchard.rollout.folder import NATIVE, RunFolder
from orchard.rollout.jobs import Bounds, Job, pause
from orchard.rollout.policies import GOLD
from orchard.sandbox import Orchard, Sandbox, SandboxOptions
from orchard.tasks.boxes import bounds
from orchard.tasks.model import GraderSpec, Task
from orchard.trajectories import Failure

log = logging.getLogger(__name__)

_MARGIN = 600.0  # seconds a sandbox and a session may last beyond the task's own limits: starts, waiting for a slot


@dataclass
class Tried:
    """What one try has come to so far; also what a failed one leaves for the record."""

    session: str | None = None
    result: HarnessResult | None = None
    patch: bytes = b""
    rewards: Sequence[tuple[GraderSpec, Reward]] = ()
    policy_version: str | None = None
    environment: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to ``seconds[stage]``."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 3)


class Attempts:
    """Makes tries within the bounds of a run."""

    def __init__(self, folder: RunFolder, orchard: Orchard, gateway: Gateway, bounds: Bounds) -> None:
        self._folder, self._orchard, self._gateway, self._bounds = folder, orchard, gateway, bounds
        self._running, self._grading = asyncio.Semaphore(bounds.run), asyncio.Semaphore(bounds.grade)

    async def attempt(self, job: Job, task: Task, harness: Harness, number: int, tried: Tried) -> None:
        """Make try ``number``; what it comes to is in ``tried``, also when it fails.

        Raises:
            RolloutFailed: trouble at a seam.
        """
        async with AsyncExitStack() as held:
            async with self._running:
                session = await held.enter_async_context(self._session(job, task, number, tried))
                box = await held.enter_async_context(self._sandbox(job, task, harness, tried))
                await self._work(job, task, harness, session, box, tried)
            async with self._grading:
                with tried.timed("grade"):
                    submission = tried.result.submission if tried.result else None
                    left = Attempt(tried.patch, box, submission, gold=job.policy.name == GOLD)
                    tried.rewards = [(spec, await self._grade(task, spec, left)) for spec in task.graders]

    @asynccontextmanager
    async def _session(self, job: Job, task: Task, number: int, tried: Tried) -> AsyncIterator[Session]:
        labels = {
            "run": self._folder.id, "rollout": job.rollout_id(self._folder.id), "task": task.id,
            "harness": job.harness, "policy": job.policy.name, "attempt": str(job.attempt), "try": str(number),
        }  # fmt: skip
        engine = job.policy.engine(task)
        budget = Budget(turns=task.limits.turns, seconds=task.limits.seconds + _MARGIN)
        with boundary("gateway"):
            session = await self._gateway.open_session(labels, budget, engine, job.policy.model, training=job.training)
        tried.session, tried.policy_version = session.id, engine.policy_version
        try:
            yield session
        finally:
            await self._gateway.close_session(session)

    @asynccontextmanager
    async def _sandbox(self, job: Job, task: Task, harness: Harness, tried: Tried) -> AsyncIterator[Sandbox]:
        labels = {"rollout": job.rollout_id(self._folder.id)}
        limits = task.limits
        with boundary("harness"):
            tools = await harness.tools()
        options: SandboxOptions = {
            "network": task.network, "labels": labels, "tools": tools,
            "ttl": min(limits.seconds + limits.grade_seconds + _MARGIN, 86400.0),
        }  # fmt: skip
        with boundary("sandbox"), tried.timed("sandbox"):
            owned = self._orchard.sandbox(task.image, **options, **await bounds(self._orchard, limits))
            box = await owned.__aenter__()
        tried.environment |= {"image": task.image, "image_digest": box.info.image_digest, "backend": box.info.backend}
        tried.environment |= {"tools": list(tools)} if tools else {}
        try:
            yield box
        finally:
            try:
                await owned.__aexit__(None, None, None)
            except OrchardError as error:  # what it was for is done, or failed for a reason of its own
                log.warning("sandbox %s could not be deleted; its lease ends it: %s", box.id, error)

    async def _work(self, job: Job, task: Task, harness: Harness, session: Session, box: Sandbox, tried: Tried) -> None:
        scratch = self._folder.scratch / session.id
        scratch.mkdir()
        try:
            if box.info.image_digest is None:  # no image that its changes could be told from later
                with boundary("sandbox"), tried.timed("sandbox"):
                    await box.baseline(task.workdir)
            with boundary("harness"):
                await check_needs(harness, box)
            async with _reachable(harness, session, box) as base_url:
                request = HarnessRequest(
                    instruction=task.instruction, box=box, workdir=task.workdir, base_url=base_url,
                    api_key=session.api_key, model=job.policy.model, scratch=scratch,
                    limits=HarnessLimits(task.limits.turns, task.limits.seconds, task.limits.command_seconds),
                    config=job.config, last_error=lambda: session.state.last_error,
                )  # fmt: skip
                with _blaming_engine(session), boundary("harness"), tried.timed("harness"):
                    async with asyncio.timeout(task.limits.seconds + _MARGIN):  # it keeps its own time, unless it hangs
                        tried.result = await harness.run(request)
                    _check(tried.result, session)
            await self._keep_native(session, tried)
            with boundary("sandbox"), tried.timed("patch"):
                tried.patch = patch = await box.diff(task.workdir)
                if patch.left_out:
                    tried.environment["left_out"] = list(patch.left_out)
                tried.environment["stats"] = await _stats(box)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    async def _keep_native(self, session: Session, tried: Tried) -> None:
        """Join the harness's own trajectory file to the record."""
        file = tried.result.native_trajectory if tried.result else None
        if file is not None:
            with boundary("store"):
                kept = await asyncio.to_thread(self._folder.keep_native, session.id, file)
            tried.environment[NATIVE] = kept

    async def _grade(self, task: Task, spec: GraderSpec, left: Attempt) -> Reward:
        """Grade, again while the verdict is missing: the agent's work is not done anew for a grader's trouble."""
        reward = Reward(spec.type, None, "not graded")
        for number in range(self._bounds.tries):
            if number:
                await asyncio.sleep(pause(self._bounds, number))
            try:
                with boundary("grade"):
                    async with asyncio.timeout(task.limits.grade_seconds + _MARGIN):
                        reward = await grader(spec.type).grade(task, spec, left, self._orchard)
            except RolloutFailed as error:
                reward = Reward(spec.type, None, error.failure.text)
                if not error.again:
                    break
            if reward.score is not None:
                break
        return reward


def _check(result: HarnessResult, session: Session) -> None:
    """Raise where the way it ended is no outcome of the model's.

    Raises:
        RolloutFailed: the harness broke, or its time ran out while the engine was away.
    """
    if result.stop is Stop.FAILED:
        raise RolloutFailed(Failure(seam="harness", reason="failed", text=result.detail), again=True)
    if result.stop is Stop.TIME and session.state.engine_failures:
        text = f"{result.detail}, and the engine was away {session.state.engine_failures} times meanwhile"
        raise RolloutFailed(Failure(seam="engine", reason="engine_unavailable", text=text), again=True)


async def _stats(box: Sandbox) -> dict[str, Any]:
    """Return what the sandbox used; nothing where it cannot be learnt, which is no reason to lose a rollout."""
    try:
        return await box.stats()
    except OrchardError:
        return {}


@asynccontextmanager
async def _reachable(harness: Harness, session: Session, box: Sandbox) -> AsyncIterator[str]:
    """Yield the base URL of the session, valid where the harness is placed."""
    if harness.placement == "beside":
        yield session.url
        return
    with boundary("sandbox"):
        tunnel = box.reverse(0, session.target)
        door = await tunnel.__aenter__()
    try:
        yield f"http://127.0.0.1:{door.port}/s/{session.id}"
    finally:
        await tunnel.__aexit__(None, None, None)


@contextmanager
def _blaming_engine(session: Session) -> Iterator[None]:
    """Where a harness gave up after its session's calls had failed, the seam is the engine's or the store's."""
    try:
        yield
    except RolloutFailed as error:
        state = session.state
        if error.failure.seam in ("harness", "engine") and state.error:
            seam = "store" if state.error_code == "store_failed" else "engine"
            failure = Failure(
                seam=seam, reason=state.error_code or "error", text=f"{state.error}\n{error.failure.text}"
            )
            raise RolloutFailed(failure, again=error.again and state.error_code not in FINAL_CODES) from error
        raise


FINAL_CODES = {"engine_refused", "script_ended", "replay_mismatch", "text_only"}
"""Codes of an engine that answers the same to another try."""
