"""OpenHands' terminal and editor act in the sandbox and nowhere else; its ways to end are told apart."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.conftest import Play, cannot_run
from tests.support.model_server import Answer, ModelServer, refuse, say
from tests.support.waiting import until

from orchard.core.errors import SandboxGone
from orchard.gateway import ScriptEngine
from orchard.harness import check as toy
from orchard.harness.endpoint import EndpointFailed
from orchard.harness.openhands.driver import OpenHands
from orchard.harness.protocol import HarnessLimits, HarnessRequest, Stop
from orchard.sandbox import Orchard, Sandbox

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
Make = Callable[..., HarnessRequest]
WORKDIR = "/srv/work"
PRIVATE = "/srv/only-here"


@pytest.fixture
async def box(orchard: Orchard) -> AsyncIterator[Sandbox]:
    async with orchard.sandbox("host", network="none") as made:
        await made.files.write(f"{WORKDIR}/greet.txt", "helo\n", mode=0o640)
        yield made


@pytest.fixture(scope="module")
async def agent(anyio_backend: str) -> AsyncIterator[OpenHands]:
    """One for all tests here: its imports take seconds."""
    if why := await asyncio.to_thread(cannot_run, "openhands"):
        pytest.skip(f"openhands cannot be installed here: {why}")
    made = OpenHands()
    yield made
    await made.close()


@pytest.fixture
def make(box: Sandbox, tmp_path: Path) -> Make:
    count = iter(range(99))

    def request(url: str, config: dict[str, Any] | None = None, **facts: float) -> HarnessRequest:
        limits = HarnessLimits(**{"turns": 10, "seconds": 120.0, "command_seconds": 20.0, **facts})  # pyright: ignore
        scratch = tmp_path / str(next(count))
        scratch.mkdir()
        return HarnessRequest("Mend greet.txt.", box, WORKDIR, url, "the-key", "m", scratch, limits, config or {})

    return request


def use(*calls: tuple[str, dict[str, Any]]) -> Answer:
    """An answer that calls tools; each answer's calls have the ids call_0, call_1 …, the same in all."""
    return say("", raw=[{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls])


def terminal(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "terminal", {"command": command, **more}


def edit(command: str, path: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "file_editor", {"command": command, "path": path, **more}


def on_this_machine(path: str) -> bool:
    return os.path.lexists(path)


FINISH = use(("finish", {"message": "It is mended."}))


async def test_its_terminal_is_one_of_the_sandbox_and_lasts(agent: OpenHands, make: Make) -> None:
    answers = [
        use(terminal(f"cd /srv && X=kept && echo $HOME $OPENAI_API_KEY > {PRIVATE}"), terminal("pwd; echo $X; false")),
        use(terminal("for i in 1 2; do\n  echo line $i\ndone"), terminal("cat <<'E'\nhere\nE")),
        use(terminal("read name; echo hello $name", timeout=1)), use(terminal("you", is_input=True)),
        use(terminal("exit 3"), terminal("echo again")), FINISH,
    ]  # fmt: skip
    async with ModelServer(answers) as server:
        result = await agent.run(make(server.url))
    assert (result.stop, result.submission, result.turns) == (Stop.SUBMITTED, "It is mended.", 6)
    told = [(event.output, event.exit_code) for event in result.events]
    assert told[1] == ("/srv\nkept", 1)
    assert told[2:4] == [("line 1\nline 2", 0), ("here", 0)]
    assert told[4][1] is None, "it waits for input"
    assert (told[5][0].splitlines()[-1], told[5][1]) == ("hello you", 0)
    assert told[7][0].splitlines()[-1] == "again", "a shell that has ended is followed by a new one"
    assert [event.tool_call_id for event in result.events[:2]] == ["call_0", "call_1"]
    assert [event.call_id for event in result.events[:3]] == ["chatcmpl-1", "chatcmpl-1", "chatcmpl-2"]
    assert not on_this_machine(PRIVATE)
    assert "the-key" not in json.dumps([event.output for event in result.events])


async def test_its_editor_sees_the_sandboxs_files_alone(agent: OpenHands, make: Make, box: Sandbox) -> None:
    here = f"{WORKDIR}/greet.txt"
    answers = [
        use(edit("view", WORKDIR), edit("str_replace", here, old_str="helo", new_str="hello"), edit("view", here)),
        use(edit("insert", here, insert_line=1, new_str="twice"), edit("undo_edit", here)),
        use(edit("create", f"{WORKDIR}/new.txt", file_text="new\n"), edit("create", here, file_text="no")),
        use(edit("view", f"../../..{Path(__file__)}"), edit("view", str(Path(__file__))), edit("view", "/dev/null")),
        FINISH,
    ]  # fmt: skip
    async with ModelServer(answers) as server:
        request = make(server.url)
        result = await agent.run(request)
    said = [event.output for event in result.events]
    assert f"{WORKDIR}/\n{WORKDIR}/greet.txt" in said[0]
    assert f"{here} has been edited" in said[1]
    assert f"{here}:\n     1\thello" in said[2]
    assert [bool(event.error) for event in result.events[5:10]] == [False, True, True, True, True]
    assert await box.files.read(here) == b"hello\n"
    assert (await box.files.stat(here)).mode == 0o640
    assert await box.files.read(f"{WORKDIR}/new.txt") == b"new\n"
    assert str(request.scratch) not in json.dumps(server.bodies), "the copy's place is told to nobody"


async def test_its_ways_to_end_are_told_apart(agent: OpenHands, make: Make) -> None:
    async def stop(*answers: Answer, last: str | None = None, **limits: float) -> Stop:
        async with ModelServer(answers) as server:
            request = make(server.url, {"condenser": False, "llm": {"num_retries": 0}}, **limits)
            object.__setattr__(request, "last_error", lambda: last)
            return (await agent.run(request)).stop

    look = use(terminal("true"))
    assert await stop(look, look, turns=1) is Stop.TURNS
    assert await stop(look, refuse(400, "context_length_exceeded"), last="context_length_exceeded") is Stop.CONTEXT
    assert await stop(look, refuse(400, "budget_exceeded"), last="budget_exceeded") is Stop.BUDGET
    assert await stop(say("I am done.")) is Stop.SUBMITTED
    assert await stop(use(terminal("sleep 60", timeout=60)), seconds=4) is Stop.TIME
    assert await stop(*[look] * 9) is Stop.FORMAT
    with pytest.raises(EndpointFailed):
        await stop(refuse(401, "invalid_api_key"))


async def test_a_lost_sandbox_is_an_error_that_the_model_never_reads(
    agent: OpenHands, make: Make, box: Sandbox
) -> None:
    async with ModelServer([use(terminal("sleep 60", timeout=60)), FINISH]) as server:
        running = asyncio.create_task(agent.run(make(server.url)))
        await until(lambda: _sleeping(box), seconds=90)
        await box.delete()
        with pytest.raises(SandboxGone):
            await running
        assert len(server.bodies) == 1


async def test_a_cancelled_run_leaves_no_process(agent: OpenHands, make: Make, box: Sandbox) -> None:
    async with ModelServer([use(terminal("sleep 60", timeout=60))]) as server:
        running = asyncio.create_task(agent.run(make(server.url)))
        await until(lambda: _sleeping(box), seconds=90)
        [fork] = agent._server._forks.values()
        running.cancel()
        assert await asyncio.gather(running, return_exceptions=True) != []
        assert not on_this_machine(f"/proc/{fork.pid}/cwd")
        assert not [status for status in await box.processes() if status.running]


async def _sleeping(box: Sandbox) -> bool:
    return bool((await box.run("cat /proc/[0-9]*/comm 2>/dev/null | grep -x sleep", timeout=20)).text)


def step(says: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"content": says, "calls": [{"name": name, "arguments": arguments}]}


async def test_a_condensation_is_a_call_beside_and_work_goes_on_from_it(agent: OpenHands, play: Play) -> None:
    mend = f"echo '{toy.RIGHT}' > {toy.FILE}"
    steps: list[Any] = [
        step(toy.SAYS[0], "terminal", command=f"cat {toy.FILE}"), step(toy.SAYS[1], "terminal", command=mend),
        step(toy.SAYS[2], "terminal", command="sh test.sh"), "The greeting was mended, and the test passes.",
        step(toy.SAYS[3], "finish", message=toy.SAYS[3]),
    ]  # fmt: skip
    ran = await play("openhands", engine=ScriptEngine(steps), config={"condense_at": 7})
    assert (ran.record.stop, ran.record.reward) == ("submitted", 1.0), ran.told()
    placed = [(call.purpose, call.matched) for call in ran.found.calls]
    assert placed[:3] == [("agent", "root"), ("agent", "extends"), ("agent", "extends")], ran.told()
    assert placed[3][0] in ("summary", "compaction"), ran.told()
    assert placed[4] == ("agent", "forked"), ran.told()
    assert steps[3] in json.dumps(ran.found.prompt(ran.found.calls[4].id))
