"""The closing record of a rollout, made of its last try."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from orchard.harness.protocol import ToolEvent
from orchard.rewards.protocol import Reward
from orchard.rollout.attempt import Tried
from orchard.rollout.jobs import Job
from orchard.tasks.model import GraderSpec, Task
from orchard.trajectories import Failure, RewardRecord, RolloutRecord, ToolRecord

TRAINING = "training"
"""Label of a rollout whose calls were made to be trained on: ``yes``."""
SERVER = "model_server"
"""Label of a rollout that a model server answered: its URL."""


@dataclass
class Progress:
    """One rollout so far: its last try, and what came before."""

    job: Job
    task: Task | None = None
    harness_version: str = ""
    tries: int = 0
    sessions: list[str] = field(default_factory=list[str])
    last: Tried = field(default_factory=Tried)
    failure: Failure | None = None
    prepare_seconds: float = 0.0
    started: datetime = field(default_factory=lambda: datetime.now(UTC))


def closing_record(run: str, progress: Progress) -> RolloutRecord:
    """Return the record that closes the rollout, as it ended or failed for good."""
    job, last = progress.job, progress.last
    result, environment = last.result, dict(last.environment) | {"orchard": orchard_version()}
    patch, raw = _text(last.patch)
    if raw:
        environment["patch_base64"] = raw
    rewards = [_reward(spec, reward) for spec, reward in last.rewards]
    return RolloutRecord(
        id=job.rollout_id(run), run=run, task=job.source.id, attempt=job.attempt, tries=progress.tries,
        sessions=progress.sessions, harness=job.harness, harness_version=progress.harness_version,
        harness_config_hash=_digest(job), policy=job.policy.name, model=job.policy.model,
        policy_version=last.policy_version, instruction=progress.task.instruction if progress.task else "",
        stop=result.stop.value if result else None, stop_detail=result.detail if result else "",
        turns=result.turns if result else 0, tools=[_tool(event) for event in result.events] if result else [],
        patch=patch, submission=result.submission if result else None, rewards=rewards,
        reward=_mean(rewards), failure=progress.failure or _ungraded(rewards), environment=environment,
        started_at=progress.started, seconds={"prepare": round(progress.prepare_seconds, 3)} | last.seconds,
        labels=_labels(job),
    )  # fmt: skip


def orchard_version() -> str:
    """Return the version of this distribution."""
    try:
        return version("orchard-env")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0"


def _mean(rewards: Sequence[RewardRecord]) -> float | None:
    """The weighted mean; None when any is missing, so that a part never passes for the whole."""
    scores = [(one.score, one.weight) for one in rewards if one.score is not None]
    total = sum(weight for _, weight in scores)
    if not rewards or len(scores) < len(rewards) or total == 0:
        return None
    return sum(score * weight for score, weight in scores) / total


def _ungraded(rewards: Sequence[RewardRecord]) -> Failure | None:
    missing = [one for one in rewards if one.score is None]
    if not missing:
        return None
    return Failure(seam="grade", reason="missing", text="; ".join(f"{one.grader}: {one.missing}" for one in missing))


def _reward(spec: GraderSpec, reward: Reward) -> RewardRecord:
    return RewardRecord(
        grader=spec.type, score=reward.score, weight=spec.weight, missing=reward.missing, evidence=dict(reward.evidence)
    )


def _tool(event: ToolEvent) -> ToolRecord:
    return ToolRecord(
        call_id=event.call_id, name=event.name, arguments=dict(event.arguments), output=event.output,
        exit_code=event.exit_code, seconds=event.seconds, error=event.error, tool_call_id=event.tool_call_id,
    )  # fmt: skip


def _labels(job: Job) -> dict[str, str]:
    labels = {"expect": job.policy.expect, SERVER: job.policy.server, TRAINING: "yes" if job.training else ""}
    return {name: text for name, text in labels.items() if text}


def _text(patch: bytes) -> tuple[str, str]:
    """Return the patch as text, and in base64 where text cannot hold it."""
    try:
        return patch.decode(), ""
    except UnicodeDecodeError:
        return patch.decode("utf-8", "replace"), base64.b64encode(patch).decode()


def _digest(job: Job) -> str:
    facts = json.dumps(dict(job.config), sort_keys=True, default=str)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
