"""``check``: one real rollout of a harness on the toy repair, and what of its record is complete.

The harness is the real program in a real sealed sandbox; only the model is scripted (``harness/check.py``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from orchard.gateway import Gateway
from orchard.gateway.engine import Engine
from orchard.harness import check as toy
from orchard.harness.registry import create_harness
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import RunFolder, open_run
from orchard.rollout.jobs import Bounds, Job, Observe
from orchard.rollout.policies import Policy
from orchard.rollout.rerun import Rerun, rerun
from orchard.rollout.toy_model import toy_model
from orchard.sandbox import Orchard
from orchard.tasks.base import base_image
from orchard.tasks.build import Recipe, base_digest, build, image_name, recall, remember
from orchard.tasks.cache import place
from orchard.tasks.model import GraderSpec, Task, TaskLimits
from orchard.tasks.tree import SourceFile
from orchard.trajectories import RolloutRecord, Trajectory, to_samples
from orchard.trajectories.stats import forks

MODEL = "toy"
LIMITS = TaskLimits(turns=12, seconds=300, command_seconds=60, grade_seconds=120)
Verdict = Literal["complete", "in part", "missing", "not applicable"]
"""Of a record, ``in part`` is not too little: it says how much there is of what need not be whole."""


@dataclass(frozen=True)
class Line:
    """One part of a record: what there is of it, and whether that is all."""

    name: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Report:
    """What one check found."""

    harness: str
    version: str
    placement: str
    image: str
    lines: Sequence[Line]
    forks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Calls that no sample of another continues, by cause: how the tree placed them, and what they are for."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the harness, under which it was checked: those given, else those that the toy wants of it."""
    replay: Rerun | None = None
    """How far a second run, answered from the record of the first, came; None where none was asked for."""

    @property
    def ok(self) -> bool:
        """Whether nothing is missing."""
        return all(line.verdict != "missing" for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class ToyRepair:
    """The toy repair as a task.

    Args:
        image: what it stands on; None is the small Debian that Orchard makes.
        limits: of its rollouts.
    """

    image: str | None = None
    limits: TaskLimits = LIMITS
    id: str = "toy-repair"

    async def prepare(self, orchard: Orchard) -> Task:
        """See ``TaskSource.prepare``."""
        base = await base_digest(orchard, self.image or await base_image(orchard))
        tree = {name: SourceFile(text.encode()) for name, text in toy.FILES.items()}
        recipe = Recipe(base, toy.WORKDIR, tree, self.id)
        kept = place("prepared/toy-repair", recipe.key())
        known = await recall(orchard, kept)
        digest = known[0] if known else await build(orchard, recipe, image_name(self.id, recipe))
        if known is None:
            remember(kept, digest)
        return Task(
            id=self.id, kind="toy", instruction=toy.INSTRUCTION, image=digest, workdir=toy.WORKDIR, limits=self.limits,
            graders=[GraderSpec(type="command", options={"shell": toy.VERDICT})],
        )  # fmt: skip


async def check(
    harness: str,
    orchard: Orchard,
    folder: Path,
    *,
    image: str | None = None,
    config: Mapping[str, Any] | None = None,
    replay: bool = False,
    observe: Observe = lambda _: None,
) -> Report:
    """Run ``harness`` on the toy repair and judge its record.

    Args:
        harness: its name in the registry.
        orchard: makes the sandboxes.
        folder: of the run, which stays; each check is an attempt of its own in it.
        image: what the toy stands on; None is the small Debian that Orchard makes.
        config: options of the harness.
        replay: run it again too, answered from its record.
        observe: told of every step.

    Raises:
        InvalidArgument: no such harness, or options that it does not take.
        MachineUnfit: it cannot be installed here, or the machine makes no sandboxes.
    """
    job = toy_job(harness, toy_model(), image=image, config=config)
    with open_run(folder) as run:
        job = replace(job, attempt=len(run.closed()))
        async with Gateway(run.store, {}) as gateway:
            await RolloutEngine(run, orchard, gateway, Bounds(tries=1), observe).run([job])
            report = replace(judge(run, run.store.trajectory(job.rollout_id(run.id))), options=job.config)
            return _replayed(report, await rerun(run, orchard, gateway, job, observe)) if replay else report


def toy_job(harness: str, engine: Engine, *, image: str | None = None, config: Mapping[str, Any] | None = None) -> Job:
    """Return the rollout of ``harness`` on the toy repair that ``engine`` answers.

    Raises:
        InvalidArgument: no such harness, or options that it does not take.
    """
    options = dict(config or toy.CONFIG.get(harness, {}))
    create_harness(harness).check(options)
    policy = Policy("toy-model", MODEL, lambda task: engine, expect="pass")
    return Job(ToyRepair(image), harness, policy, 0, options)


def judge(run: RunFolder, found: Trajectory) -> Report:
    """Return what of a rollout of the toy repair is complete."""
    rollout = found.rollout
    assert rollout is not None
    native = _native(found, run.native(rollout))
    lines = [_end(rollout), *_calls(found), _tools(found), _patch(rollout), _samples(found), native]
    image = str(rollout.environment.get("image_digest") or rollout.environment.get("image") or "")
    placement = create_harness(rollout.harness).placement
    return Report(rollout.harness, rollout.harness_version, placement, image, lines, dict(forks(found)))


def _replayed(report: Report, found: Rerun) -> Report:
    """Return the report with what a second run came to, which is no part of the record."""
    pinned, exact = found.pinned, found.exact
    told = f"{pinned.same} of {pinned.calls} prefixes came again"
    if exact.same < pinned.same:
        told += f", {exact.same} of them word for word"
    if difference := pinned.difference or exact.difference:
        told += f"; first, {difference}"
    line = Line("replay", "complete" if pinned.difference is None else "in part", told)
    return replace(report, lines=[*report.lines, line], replay=found)


def _line(name: str, whole: bool, detail: str) -> Line:
    return Line(name, "complete" if whole else "missing", detail)


def _end(rollout: RolloutRecord) -> Line:
    if rollout.failure is not None:
        return _line("end", False, f"{rollout.failure.seam}, {rollout.failure.reason}: {rollout.failure.text}")
    seconds = rollout.seconds.get("harness", 0.0)
    return _line("end", rollout.stop == "submitted", f"{rollout.stop or 'none'} after {seconds:.1f} s")


def _calls(found: Trajectory) -> Iterator[Line]:
    status = Counter(call.status for call in found.calls)
    dialects = ", ".join(sorted({call.dialect for call in found.calls}))
    whole = bool(found.calls) and set(status) == {"ok"} and not found.refusals
    beside = [f"{number} {word}" for word, number in status.items() if word != "ok"]
    beside += [f"{len(found.refusals)} refused"] if found.refusals else []
    yield _line("calls", whole, ", ".join([f"{status['ok']} answered ({dialects or 'none'})", *beside]))
    branches = found.branches()
    agents = [branch for branch in branches if branch.leaf.purpose == "agent"]
    words = [f"{len(branches)} conversations", *(f"{number} {cause}" for cause, number in forks(found).items())]
    yield _line("conversations", bool(agents), ", ".join(words) if len(branches) != 1 else "one, append-only")


def _tools(found: Trajectory) -> Line:
    """The results of all tool calls but those that ended the run are in the record, the test's words among them."""
    branches = found.branches()
    asked = sum(len(call.answer.get("tool_calls") or ()) for call in found.calls if call.answer and call.status == "ok")
    ended = sum(len((branch.leaf.answer or {}).get("tool_calls") or ()) for branch in branches)
    results = [message for branch in branches for message in branch.messages if message.get("role") == "tool"]
    passed = any(toy.PASSED in json.dumps(message.get("content")) for message in results)
    detail = f"{asked} calls, {len(results)} results" + ("" if passed else ", none of them says that the test passed")
    return _line("tools", passed and len(results) >= asked - ended, detail)


def _patch(rollout: RolloutRecord) -> Line:
    mended = f"+{toy.RIGHT}\n" in rollout.patch
    score = "no verdict" if rollout.reward is None else f"graded {rollout.reward:g} in a fresh sandbox"
    size = f"{len(rollout.patch.splitlines())} lines" if rollout.patch else "empty"
    return _line("patch", mended and rollout.reward == 1.0, f"{size}, {score}")


def _samples(found: Trajectory) -> Line:
    sampled = sum(len(call.sampled_ids or ()) for call in found.calls)
    if not sampled:
        why = "no token ids: the extra `tokens` is not installed" if _answered(found) else "no call was answered"
        return Line("samples", "not applicable", why)
    samples = to_samples(found)
    trained = sum(sum(sample.mask) for sample in samples)
    detail = f"{len(samples)} made of {len(found.calls)} calls, {trained} of {sampled} sampled tokens trained once"
    return _line("samples", trained == sampled, detail)


def _answered(found: Trajectory) -> bool:
    return any(call.status == "ok" for call in found.calls)


def _native(found: Trajectory, file: bytes | None) -> Line:
    """Each answer of the agent's is found in the harness's own file by what it says."""
    if file is None:
        broken = found.rollout is not None and found.rollout.failure is not None
        why = "the run broke off before there was one" if broken else "the harness writes none"
        return Line("native trajectory", "not applicable", why if _answered(found) else "no call was answered")
    said = [call.answer.get("content") for call in found.calls if call.purpose == "agent" and call.answer]
    words = [json.dumps(text)[1:-1].encode() for text in said if text]
    held = sum(word in file for word in words)
    return _line("native trajectory", held == len(words), f"{len(file)} bytes hold {held} of {len(words)} answers")
