"""Whole rollouts in real local sandboxes: what is recorded, what is retried, what a kill -9 leaves, what is resumed."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import toy
from tests.support.toy import IDLE, MEND, Flaky, Toy, scripted
from tests.support.waiting import until

from orchard.core.errors import Conflict, MachineUnfit, SandboxGone, Unavailable
from orchard.evals.run import Plan, evaluate, report_on
from orchard.gateway import Delta, EngineRequest, EngineUnavailable, Final, ScriptedTokens, TokenExact, bash_step
from orchard.harness.protocol import SUBMIT_MARKER
from orchard.harness.registry import HARNESSES
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.registry import GRADERS
from orchard.rollout.folder import read_run
from orchard.rollout.groups import groups
from orchard.rollout.jobs import Event
from orchard.rollout.policies import Policy, policy
from orchard.rollout.toy_model import small_renderer
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.tasks.model import GraderSpec, Task, TaskLimits
from orchard.trajectories import RolloutRecord, Trajectory

pytestmark = pytest.mark.root
TOY = Path(toy.__file__)
Start = Callable[..., subprocess.Popen[str]]
ASK = """
import json, os, sys, urllib.request
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.stdin.read()}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
answer = json.load(urllib.request.urlopen(request, timeout=20))
open("note", "w").write(answer["choices"][0]["message"]["content"] + "\\n")
"""


@pytest.fixture
async def orchard(local_home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchard]:
    toy.register()
    async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as door:
        yield door
        assert await door.list() == []


def trajectories(folder: Path) -> list[Trajectory]:
    with read_run(folder) as run:
        return [run.store.trajectory(record.id) for record in run.records()]


def records(folder: Path) -> list[RolloutRecord]:
    return [found.rollout for found in trajectories(folder) if found.rollout]


async def test_a_rollout_is_recorded_whole(orchard: Orchard, tmp_path: Path) -> None:
    report = await evaluate(replace(toy.plan(tmp_path, 1, MEND, IDLE), attempts=2), orchard)
    assert [(row.policy, row.metrics.passed, row.metrics.judged) for row in report.rows] == [
        ("idle", 0, 2), ("mend", 2, 2)
    ]  # fmt: skip
    for found in trajectories(tmp_path):
        row = found.rollout
        assert row is not None
        assert (row.stop, row.failure, row.tries, len(row.sessions)) == ("submitted", None, 1, 1)
        assert [call.response_id for call in found.calls] == [tool.call_id for tool in row.tools]
        assert row.turns == len(found.calls) == (2 if row.policy == "mend" else 1)
        assert ("+mended\n" in row.patch) == (row.reward == 1.0) == (row.policy == "mend")
        assert set(row.seconds) == {"prepare", "sandbox", "harness", "patch", "grade"}
        assert row.environment["backend"] == "local"
        assert row.environment["stats"]["memory_limit_bytes"] == 2 << 30
    assert [len(group.rewards) for group in groups(records(tmp_path))] == [2, 2]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "report.json").read_text())["run"] == report.run


async def test_what_was_done_when_time_ran_out_is_kept_and_graded(orchard: Orchard, tmp_path: Path) -> None:
    short = Toy("short", TaskLimits(turns=5, seconds=12.0, command_seconds=30))
    late = scripted("late", "echo mended > note; sleep 60")
    await evaluate(replace(toy.plan(tmp_path, 1, late), sources=[short]), orchard)
    [row] = records(tmp_path)
    assert (row.stop, row.reward, row.failure) == ("time", 1.0, None)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    monkeypatch.setitem(HARNESSES, "flaky", "tests.support.toy:Flaky")
    Flaky.uses, Flaky.always = 0, False
    return Flaky


async def test_infrastructure_trouble_is_tried_again_in_a_new_session(
    orchard: Orchard, tmp_path: Path, flaky: type[Flaky]
) -> None:
    seen: list[Event] = []
    await evaluate(replace(toy.plan(tmp_path, 1, MEND), harnesses=["flaky"]), orchard, seen.append)
    [row] = records(tmp_path)
    assert (row.tries, len(set(row.sessions)), row.reward, row.harness_version) == (2, 2, 1.0, "7")
    assert [event.kind for event in seen] == ["prepared", "started", "failed", "closed"]
    assert [event.failure and event.failure.seam for event in seen][2] == "harness"


async def test_a_rollout_that_fails_for_good_is_a_record_and_its_siblings_go_on(
    orchard: Orchard, tmp_path: Path, flaky: type[Flaky]
) -> None:
    Flaky.always = True
    plan = replace(toy.plan(tmp_path, 2, MEND), harnesses=["flaky", "bash-loop"])
    report = await evaluate(plan, orchard)
    broken = [row for row in records(tmp_path) if row.harness == "flaky"]
    assert [(row.tries, row.reward, row.failure and row.failure.reason) for row in broken] == [
        (3, None, "unavailable")
    ] * 2
    assert [row.reward for row in records(tmp_path) if row.harness == "bash-loop"] == [1.0, 1.0]
    assert [row.metrics.failures for row in report.rows if row.harness == "flaky"] == [{"harness": 2}]


async def test_a_run_that_is_resumed_with_other_settings_is_refused_and_a_larger_one_is_not(
    orchard: Orchard, tmp_path: Path
) -> None:
    plan = toy.plan(tmp_path, 1, MEND)
    first = await evaluate(plan, orchard)
    nothing_left = await evaluate(plan, orchard)
    assert 0 < first.seconds <= nothing_left.seconds == report_on(tmp_path).seconds
    (tmp_path / "report.json").write_text('{"title": "hal')  # as a kill left it once
    assert len(report_on(tmp_path).cells) == 1
    other = Toy("toy-0", TaskLimits(turns=6, seconds=60, command_seconds=30))
    for changed, words in (
        (replace(plan, config={"bash-loop": {"system": "Be quick."}}), "harness bash-loop: options"),
        (replace(plan, policies=[replace(MEND, sampling={"top_p": 1})]), "policy mend: sampling"),
        (replace(plan, sources=[other]), "task toy-0: limits"),
    ):
        with pytest.raises(Conflict, match=words):
            await evaluate(changed, orchard)
    assert len(records(tmp_path)) == 1
    await evaluate(replace(toy.plan(tmp_path, 2, MEND, IDLE), attempts=2), orchard)
    assert len(records(tmp_path)) == 8


async def test_a_run_for_training_is_token_exact_or_fails_and_says_so(orchard: Orchard, tmp_path: Path) -> None:
    steps = [bash_step(command) for command in ("echo mended > note", f"echo {SUBMIT_MARKER}")]
    renderer = small_renderer()
    engine = TokenExact(ScriptedTokens(renderer, steps), renderer)
    plan = toy.plan(tmp_path, 1, MEND, Policy("exact", "toy", lambda task: engine), policy("noop"))
    await evaluate(replace(plan, training=True), orchard)
    found = {one.rollout.policy: one for one in trajectories(tmp_path) if one.rollout}
    told = {name: one.sessions[-1].training for name, one in found.items()}
    assert told == {"exact": True, "mend": True, "noop": False}  # nobody learns what a script says
    exact, text, script = (one for name in ("exact", "mend", "noop") if (one := found[name].rollout))
    assert (exact.reward, exact.labels, script.labels) == (1.0, {"training": "yes"}, {"expect": "fail"})
    assert (text.reward, text.tries) == (None, 1)  # a further try would end the same
    assert text.failure is not None
    assert (text.failure.seam, text.failure.reason) == ("engine", "engine_refused")
    with pytest.raises(Conflict, match="run: training"):
        await evaluate(plan, orchard)


class Away:
    """An engine that never answers."""

    name, policy_version = "away", "v3"

    async def complete(self, request: EngineRequest) -> AsyncIterator[Delta | Final]:
        raise EngineUnavailable("the server is being restarted")
        yield

    async def close(self) -> None: ...


async def test_time_that_ran_out_while_the_engine_was_away_is_no_failure_of_the_model(
    orchard: Orchard, tmp_path: Path
) -> None:
    short = Toy("short", TaskLimits(turns=5, seconds=1.0, command_seconds=30))
    plan = replace(toy.plan(tmp_path, 1, replace(MEND, engine=lambda task: Away())), sources=[short])
    await evaluate(replace(plan, bounds=replace(plan.bounds, tries=2)), orchard)
    [row] = records(tmp_path)
    assert row.failure is not None
    assert (row.failure.seam, row.failure.reason, row.reward, row.tries) == ("engine", "engine_unavailable", None, 2)
    assert row.policy_version == "v3"


async def test_a_broken_machine_does_not_use_up_a_benchmark(
    orchard: Orchard, tmp_path: Path, flaky: type[Flaky]
) -> None:
    Flaky.always = True
    plan = toy.plan(tmp_path, 12, MEND)
    plan = replace(plan, harnesses=["flaky"], bounds=replace(plan.bounds, tries=1, give_up=4))
    with pytest.raises(Unavailable, match="4 rollouts in a row failed for good, the last at harness"):
        await evaluate(plan, orchard)
    assert len(records(tmp_path)) < 8
    Flaky.always = False
    await evaluate(plan, orchard)
    rows = records(tmp_path)
    broken = {row.id for row in rows if row.failure}
    assert len(rows) == 12
    assert len(broken) >= 4, "what failed for good stays so"
    seen: list[Event] = []
    report = await evaluate(replace(plan, retry_broken=True), orchard, seen.append)
    assert {event.record.id for event in seen if event.record} == broken, "and is run again where that is asked for"
    assert [(row.metrics.passed, row.metrics.judged, row.metrics.attempts) for row in report.rows] == [(12, 12, 12)]


async def test_what_the_machine_lacks_stops_the_run_and_closes_nothing(
    orchard: Orchard, tmp_path: Path, flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(self: Flaky) -> None:
        raise MachineUnfit("the index cannot be reached", hint="mend it")

    monkeypatch.setattr(Flaky, "install", missing)
    with pytest.raises(MachineUnfit, match="the index"):
        await evaluate(replace(toy.plan(tmp_path, 2, MEND), harnesses=["flaky"]), orchard)
    assert records(tmp_path) == []


async def test_a_task_that_cannot_be_prepared_fails_only_its_own_rollouts(orchard: Orchard, tmp_path: Path) -> None:
    class Refused(Toy):
        async def prepare(self, orchard: Orchard) -> Task:
            raise Unavailable("the index is away")

    plan = replace(toy.plan(tmp_path, 1, MEND), sources=[Refused("refused"), Toy("good")])
    await evaluate(plan, orchard)
    rows = {row.task: row for row in records(tmp_path)}
    failure = rows["refused"].failure
    assert failure is not None
    assert (failure.seam, rows["refused"].tries, rows["refused"].reward) == ("prepare", 0, None)
    assert rows["good"].reward == 1.0


async def test_grading_is_tried_again_without_the_agent(orchard: Orchard, tmp_path: Path) -> None:
    toy.PatchSays.away = 2
    await evaluate(toy.plan(tmp_path, 1, MEND), orchard)
    [row] = records(tmp_path)
    assert (row.tries, len(row.sessions), row.reward) == (1, 1, 1.0)
    toy.PatchSays.away = 3
    await evaluate(toy.plan(tmp_path / "again", 1, MEND), orchard)
    [row] = records(tmp_path / "again")
    assert (row.reward, row.failure and row.failure.seam, row.rewards[0].missing) == (
        None, "grade", "the grader is away"
    )  # fmt: skip
    assert "+mended" in row.patch


async def test_a_grader_s_sandbox_bears_the_run_s_label_so_that_a_resume_finds_it(
    orchard: Orchard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Looks(toy.PatchSays):
        async def grade(self, task: Task, spec: GraderSpec, attempt: Attempt, orchard: Orchard) -> Reward:
            async with orchard.sandbox("host", labels={"of": "grader"}) as box:
                return Reward(spec.type, 1.0, evidence={"labels": dict(box.info.labels)})

    monkeypatch.setitem(GRADERS, "patch-says", Looks)
    await evaluate(toy.plan(tmp_path, 1, MEND), orchard)
    [row] = records(tmp_path)
    assert row.rewards[0].evidence["labels"] == {"run": row.run, "of": "grader"}


async def test_a_harness_inside_reaches_the_gateway_without_a_network(orchard: Orchard, tmp_path: Path) -> None:
    policy = scripted("inside", "unused")
    policy = replace(policy, engine=lambda task: toy.ScriptEngine(["mended"]))
    config = {"command": {"argv": ["python3", "-c", ASK]}}
    plan = replace(toy.plan(tmp_path, 1, policy), harnesses=["command"], config=config)
    await evaluate(plan, orchard)
    [found] = trajectories(tmp_path)
    assert found.rollout is not None
    assert (found.rollout.stop, found.rollout.reward) == ("submitted", 1.0), found.rollout
    assert [call.messages for call in found.calls] == [[{"role": "user", "content": "Write it down."}]]


async def test_no_more_happens_at_once_than_the_bounds_say(orchard: Orchard, tmp_path: Path) -> None:
    running, most = set[str](), 0

    def observe(event: Event) -> None:
        nonlocal most
        (running.add if event.kind == "started" else running.discard)(event.job.title)
        most = max(most, len(running))

    plan: Plan = toy.plan(tmp_path, 8, scripted("nap", "echo mended > note; sleep 0.2"))
    await evaluate(plan, orchard, observe)
    assert most == 3, "run + grade rollouts hold a sandbox"


@pytest.fixture
def start(local_home: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the toy program on the test's run; it is dead when the test has ended."""
    running: list[subprocess.Popen[str]] = []

    def go(count: int, *, quick: int) -> subprocess.Popen[str]:
        argv = [sys.executable, str(TOY), str(tmp_path), str(local_home), str(count), str(quick)]
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield go
    for process in running:
        process.kill()
        process.communicate()


def wait_for_closed(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    closed = 0
    while closed < count:
        line = process.stdout.readline()
        assert line, process.communicate()
        closed += line.startswith("closed")


async def asleep(orchard: Orchard) -> bool:
    """Whether an agent is in the middle of its work."""
    for info in await orchard.list():
        with suppress(SandboxGone, Unavailable):
            box = await orchard.attach(info.id)
            if any(one.running and "sleep" in one.argv[-1] for one in await box.processes()):
                return True
    return False


async def test_kill_9_loses_and_repeats_nothing_and_leaves_nothing(
    start: Start, local_home: Path, tmp_path: Path
) -> None:
    first = start(6, quick=2)
    await asyncio.to_thread(wait_for_closed, first, 2)
    backend = LocalBackend(LocalSettings(home=local_home))
    async with Orchard(backend=backend) as orchard:
        await until(lambda: asleep(orchard))
        first.kill()
        first.communicate()
        left = [info.id for info in await orchard.list()]
    assert left, "it was killed in the middle of something"
    second = start(6, quick=6)
    output, errors = await asyncio.to_thread(second.communicate)
    assert second.returncode == 0, errors
    assert (output.count("known"), output.count("closed")) == (2, 4)
    with read_run(tmp_path) as run:
        closings = Counter(record.id for record in run.store.records() if isinstance(record, RolloutRecord))
        tried = {session for record in run.records() for session in record.sessions}
        aborted = {row.session for row in run.store.aborted()}
    assert len(closings) == 6
    assert set(closings.values()) == {1}
    assert len(tried) == 6
    assert aborted
    assert not aborted & tried
    assert (await backend.list()).items == []
    for sandbox_id in left:
        assert (await backend.get(sandbox_id)).reason == "deleted"
    await backend.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_ends_clean_and_can_be_resumed(
    start: Start, local_home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(4, quick=1)
    await asyncio.to_thread(wait_for_closed, process, 1)
    process.send_signal(number)
    await asyncio.to_thread(process.communicate)
    assert process.returncode == 128 + number
    backend = LocalBackend(LocalSettings(home=local_home))
    assert (await backend.list()).items == []
    await backend.close()
    assert not (tmp_path / "scratch").exists()
