"""The real mini-swe-agent from PyPI against a real sandbox: its commands act there and nowhere else."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.model_server import SUBMIT, ModelServer, refuse, say
from tests.support.waiting import until

from orchard.core.errors import SandboxGone
from orchard.harness.beside.server import HarnessBroke
from orchard.harness.endpoint import EndpointFailed
from orchard.harness.mini_swe_agent.driver import MiniSweAgent
from orchard.harness.protocol import HarnessLimits, HarnessRequest, Stop
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.local import LocalBackend, LocalSettings

pytestmark = pytest.mark.root
Make = Callable[..., HarnessRequest]
HOLD = """
import asyncio, sys
from pathlib import Path
from orchard.harness.mini_swe_agent.driver import MiniSweAgent
import socket
async def main():
    server, (ours, theirs) = MiniSweAgent()._server, socket.socketpair()
    fork = await server.fork(theirs, Path(sys.argv[1]), Path(sys.argv[1]) / "log")
    print(server._process.pid, fork.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
async def box(local_home: Path) -> AsyncIterator[Sandbox]:
    async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as door, door.sandbox("host") as made:
        yield made


@pytest.fixture(scope="module")
async def agent(anyio_backend: str) -> AsyncIterator[MiniSweAgent]:
    """One for all tests here: its imports take seconds."""
    made = MiniSweAgent()
    await made.install()
    yield made
    await made.close()


@pytest.fixture
def make(box: Sandbox, tmp_path: Path) -> Make:
    count = iter(range(99))

    def request(url: str, **facts: float) -> HarnessRequest:
        limits = HarnessLimits(**{"turns": 10, "seconds": 60.0, "command_seconds": 20.0, **facts})  # pyright: ignore
        scratch = tmp_path / str(next(count))
        scratch.mkdir()
        return HarnessRequest("Mend the pad.", box, "/srv", url, "the-key", "m", scratch, limits)

    return request


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended while it was read
        return False


async def sleeping(box: Sandbox) -> bool:
    return any("sleep" in status.argv[-1] for status in await box.processes())


async def test_its_commands_act_in_the_sandbox_only(agent: MiniSweAgent, make: Make, box: Sandbox) -> None:
    here = f"/srv/orchard-{os.getpid()}"
    answers = [
        say("I look.", f"pwd; hostname; echo mended > {here}; echo $HOME $OPENAI_API_KEY"), say("no call"),
        say("Again.", "seq 1 30000; exit 4"), say("Done.", f"{SUBMIT}; echo the rest"),
    ]  # fmt: skip
    async with ModelServer(answers) as server:
        result = await agent.run(make(server.url))
    assert (result.stop, result.submission, result.turns) == (Stop.SUBMITTED, "the rest\n", 4)
    assert [event.exit_code for event in result.events] == [0, 4, 0]
    assert result.events[0].output.splitlines()[0] == "/srv"
    assert "the-key" not in result.events[0].output
    assert Path(here).name not in os.listdir("/srv")  # noqa: PTH208 - one look at this machine's own folder
    assert await box.files.read(here) == b"mended\n"
    assert [tool["function"]["name"] for tool in server.bodies[0]["tools"]] == ["bash"]
    assert "elided_chars" in server.messages[-1]["content"]
    assert result.native_trajectory is not None
    assert result.native_trajectory.is_file()


async def test_its_ways_to_end_are_told_apart(agent: MiniSweAgent, make: Make) -> None:
    async def stop(*answers: object, **limits: float) -> Stop:
        async with ModelServer(answers) as server:  # pyright: ignore[reportArgumentType]
            return (await agent.run(make(server.url, **limits))).stop

    assert await stop(say("a", "true"), say("b", "true"), turns=1) is Stop.TURNS
    assert await stop(say("none"), say("none"), say("none")) is Stop.FORMAT
    assert await stop(say("a", "true"), refuse(400, "budget_exceeded")) is Stop.BUDGET
    assert await stop(refuse(400, "context_length_exceeded")) is Stop.CONTEXT
    assert await stop(say("a", "echo kept > /srv/kept; sleep 60"), seconds=1.5) is Stop.TIME


async def test_trouble_is_an_error_and_no_outcome(agent: MiniSweAgent, make: Make, box: Sandbox) -> None:
    async with ModelServer([refuse(401, "invalid_api_key")]) as server:
        with pytest.raises(EndpointFailed, match="AuthenticationError"):
            await agent.run(make(server.url))
    async with ModelServer([say("a", "true"), say("b", "sleep 60")]) as server:
        running = asyncio.create_task(agent.run(make(server.url)))
        await until(lambda: len(server.bodies) == 2)
        await box.delete()
        with pytest.raises(SandboxGone):
            await running
        assert len(server.bodies) == 2, "the model never reads of it"


async def test_a_cancelled_run_leaves_no_process(agent: MiniSweAgent, make: Make, box: Sandbox) -> None:
    async with ModelServer([say("a", "sleep 61")]) as server:
        running = asyncio.create_task(agent.run(make(server.url)))
        await until(lambda: sleeping(box))
        [fork] = agent._server._forks.values()
        running.cancel()
        assert await asyncio.gather(running, return_exceptions=True) != []
        assert not alive(fork.pid)
        assert not [status for status in await box.processes() if status.running]


async def test_a_lost_server_breaks_its_runs_and_is_started_again(agent: MiniSweAgent, make: Make) -> None:
    async with ModelServer([say("a", "sleep 61"), say("b", SUBMIT)]) as server:
        running = asyncio.create_task(agent.run(make(server.url)))
        await until(lambda: bool(server.bodies))
        assert agent._server._process is not None
        agent._server._process.kill()
        with pytest.raises(HarnessBroke):
            await running
        assert (await agent.run(make(server.url))).stop is Stop.SUBMITTED


async def test_nothing_of_it_outlives_a_kill_9(agent: MiniSweAgent, tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    pids = [int(pid) for pid in (await holder.stdout.readline()).split()]
    assert [alive(pid) for pid in pids] == [True, True]
    holder.kill()
    await holder.communicate()
    await until(lambda: not any(alive(pid) for pid in pids))


async def test_half_a_character_in_a_command_breaks_nothing(agent: MiniSweAgent, make: Make) -> None:
    async with ModelServer([say("a", "echo '\ud800'"), say("b", SUBMIT)]) as server:
        result = await agent.run(make(server.url))
    assert (result.stop, result.events[0].output) == (Stop.SUBMITTED, "\ufffd\n")
