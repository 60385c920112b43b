"""Tasks are prepared once, a little ahead of need, and not kept for ever."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import pytest
from tests.support.toy import MEND, PatchSays, Toy
from tests.support.waiting import until

from orchard.core.errors import TaskRefused, Unavailable
from orchard.rewards.registry import GRADERS
from orchard.rollout import prepare
from orchard.rollout.boundary import RolloutFailed
from orchard.rollout.jobs import Bounds, Job
from orchard.rollout.prepare import Preparation
from orchard.sandbox import Orchard
from orchard.tasks.model import GraderSpec, Task


@dataclass(frozen=True)
class Watched(Toy):
    """Notes when it is prepared; ``trouble`` comes first."""

    seen: tuple[list[str], list[Exception]] = ((), ())  # pyright: ignore[reportAssignmentType]

    async def prepare(self, orchard: Orchard) -> Task:
        names, trouble = self.seen
        names.append(self.id)
        await asyncio.sleep(0)
        if trouble:
            raise trouble.pop(0)
        return await super().prepare(orchard)


def jobs(count: int, *trouble: Exception) -> tuple[list[Job], list[str]]:
    names: list[str] = []
    return [Job(Watched(f"toy-{n}", seen=(names, list(trouble))), "bash-loop", MEND, 0) for n in range(count)], names


@pytest.fixture
def preparation(monkeypatch: pytest.MonkeyPatch) -> Preparation:
    monkeypatch.setitem(GRADERS, "patch-says", PatchSays)
    return Preparation(Orchard(), Bounds(prepare=1, tries=2, pause=0.01), lambda event: None)


async def test_a_grader_that_there_is_not_is_known_before_any_agent_works(preparation: Preparation) -> None:
    class Odd(Toy):
        async def prepare(self, orchard: Orchard) -> Task:
            return (await super().prepare(orchard)).model_copy(update={"graders": [GraderSpec(type="nope")]})

    with pytest.raises(RolloutFailed, match="no grader 'nope'") as caught:
        await preparation.task(Job(Odd("toy"), "bash-loop", MEND, 0))
    assert (caught.value.failure.seam, caught.value.again) == ("prepare", False)
    await preparation.close()


async def test_one_task_is_prepared_ahead_and_no_more_until_it_is_asked_for(preparation: Preparation) -> None:
    every, prepared = jobs(4)
    ahead = asyncio.create_task(preparation.go_ahead(every))
    await until(lambda: prepared == ["toy-0"])
    await asyncio.sleep(0.05)
    assert prepared == ["toy-0"]
    assert (await preparation.task(every[0])).id == "toy-0"
    await until(lambda: prepared == ["toy-0", "toy-1"])
    assert (await preparation.task(every[3])).id == "toy-3", "asked for before its turn"
    for job in every[1:]:
        await preparation.task(job)
    await ahead
    assert sorted(prepared) == ["toy-0", "toy-1", "toy-2", "toy-3"], "each once"
    await preparation.close()


async def test_many_rollouts_share_one_preparation_and_its_failure(preparation: Preparation) -> None:
    [job], prepared = jobs(1, Unavailable("away"))
    tasks = await asyncio.gather(*(preparation.task(job) for _ in range(5)))
    assert len({id(task) for task in tasks}) == 1
    assert prepared == ["toy-0", "toy-0"], "once more after trouble"
    [refused], prepared = jobs(1, TaskRefused("no signal", reason="no_tests"), Unavailable("never reached"))
    refused = Job(Watched("other", seen=refused.source.seen), "bash-loop", MEND, 0)  # pyright: ignore
    for _ in range(2):
        with pytest.raises(RolloutFailed) as caught:
            await preparation.task(refused)
        assert caught.value.failure.reason == "no_tests"
    assert prepared == ["other"], "a refusal is not tried again"


async def test_tasks_of_long_ago_are_let_go(preparation: Preparation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "KEPT", 2)
    every, prepared = jobs(4)
    for job in every:
        await preparation.task(job)
    assert list(preparation._tasks) == ["toy-2", "toy-3"]
    await preparation.task(every[0])
    assert prepared == ["toy-0", "toy-1", "toy-2", "toy-3", "toy-0"]


async def test_closing_ends_what_is_being_prepared(preparation: Preparation) -> None:
    class Endless(Toy):
        async def prepare(self, orchard: Orchard) -> Task:
            await asyncio.sleep(3600)
            raise AssertionError

    waiting = asyncio.create_task(preparation.task(Job(Endless("endless"), "bash-loop", MEND, 0)))
    await until(lambda: "endless" in preparation._tasks)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    [task] = preparation._tasks.values()
    await preparation.close()
    assert task.cancelled()
