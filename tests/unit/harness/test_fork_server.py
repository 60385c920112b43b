"""The fork server with the real ``child.py``: what hangs, fills up or is given up leaves nothing behind."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from orchard.harness.beside import server as module
from orchard.harness.beside.bridge import Bridge
from orchard.harness.beside.environment import Environment
from orchard.harness.beside.server import Fork, ForkServer, HarnessBroke

RUNNER = """
import os, time
def make_runner():
    while os.path.exists(os.environ["HANGS"]):
        time.sleep(0.01)
    def run(bridge):
        with open("pid", "w") as file:
            file.write(str(os.getpid()))
        bridge.receive()
    return run
"""


@dataclass(frozen=True)
class Here(Environment):
    """This interpreter, with nothing installed."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)


class Silent(Bridge):
    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        return {}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ForkServer]:
    runner = tmp_path / "runner.py"
    runner.write_text(RUNNER)
    made = ForkServer(Here("toy", "1", tmp_path / "none"), runner, {"HANGS": str(tmp_path / "hangs")})
    yield made
    if made._process is not None:
        resume(made)
    await made.close()


def pause(server: ForkServer) -> None:
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)


def resume(server: ForkServer) -> None:
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGCONT)


def children(server: ForkServer) -> str:
    assert server._process is not None
    pid = server._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


async def fork(server: ForkServer, home: Path) -> Fork:
    """Return a fork whose bridge has no other end, so that it works to its job and ends."""
    await asyncio.to_thread(home.mkdir)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return await server.fork(theirs, home, home / "log")


async def test_a_server_that_does_not_start_in_time_is_ended(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs").touch()
    with monkeypatch.context() as short:
        short.setattr(module, "START_SECONDS", 0.1)
        with pytest.raises(HarnessBroke, match="did not start"):
            await fork(server, tmp_path / "1")
    assert server._process is None
    (tmp_path / "hangs").unlink()
    assert await (await fork(server, tmp_path / "2")).exited == 1, "another one was started"


async def test_a_start_that_is_cancelled_ends_the_server(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "hangs").touch()
    first = asyncio.create_task(fork(server, tmp_path / "1"))
    await until(lambda: server._listening is not None)
    first.cancel()
    await asyncio.wait([first])
    assert server._process is None
    (tmp_path / "hangs").unlink()
    assert await (await fork(server, tmp_path / "2")).exited == 1


async def test_a_server_that_makes_no_fork_is_ended(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await fork(server, tmp_path / "1")).exited
    assert server._process is not None
    first = server._process.pid
    pause(server)
    with monkeypatch.context() as short:
        short.setattr(module, "FORK_SECONDS", 0.1)
        with pytest.raises(HarnessBroke, match="made no fork"):
            await fork(server, tmp_path / "2")
    assert await (await fork(server, tmp_path / "3")).exited == 1
    assert server._process.pid != first


async def test_requests_beyond_what_the_socket_holds_wait_for_room(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await fork(server, tmp_path / "first")).exited
    assert server._control is not None
    server._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    send, full = socket.send_fds, asyncio.Event()

    def watched(*args: Any) -> int:
        try:
            return send(*args)
        except BlockingIOError:
            full.set()
            raise

    monkeypatch.setattr(socket, "send_fds", watched)
    pause(server)
    running = [asyncio.create_task(fork(server, tmp_path / str(n))) for n in range(30)]
    await full.wait()
    resume(server)
    forks = await asyncio.gather(*running)
    await asyncio.wait([one.exited for one in forks])
    assert [one.pid for one in forks] == [int((tmp_path / str(n) / "pid").read_text()) for n in range(30)]


async def test_a_run_that_is_cancelled_before_its_fork_leaves_nothing(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await fork(server, tmp_path / "first")).exited
    monkeypatch.setattr(Fork, "kill", lambda self: None)  # as where the fork leads no session yet: EOF ends it
    pause(server)
    bridge, scratch = Silent(), tmp_path / "scratch"
    scratch.mkdir()
    running = asyncio.create_task(server.run(bridge, {}, scratch, 60.0))
    await until(lambda: len(server._asked) == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (bridge.ours.fileno(), bridge.theirs.fileno()) == (-1, -1)
    resume(server)
    await until(lambda: not server._asked and not server._forks and not children(server))


def no_home(server: ForkServer, scratch: Path) -> None:
    (scratch / "home").touch()


def no_runner(server: ForkServer, scratch: Path) -> None:
    server._runner = scratch / "missing.py"


@pytest.mark.parametrize("fault", [no_home, no_runner])
async def test_a_run_that_gets_no_fork_closes_its_bridge(
    server: ForkServer, tmp_path: Path, fault: Callable[[ForkServer, Path], None]
) -> None:
    fault(server, tmp_path)
    bridge = Silent()
    with pytest.raises((HarnessBroke, FileExistsError)):
        await server.run(bridge, {}, tmp_path, 60.0)
    assert (bridge.ours.fileno(), bridge.theirs.fileno()) == (-1, -1)


async def test_an_installer_that_has_just_ended_is_cancelled_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, started = asyncio.subprocess.Process.kill, asyncio.Event()

    def late(self: asyncio.subprocess.Process) -> None:
        kill(self)
        raise ProcessLookupError

    async def communicate(self: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
        started.set()
        await self.wait()
        return b"", b""

    monkeypatch.setattr(asyncio.subprocess.Process, "kill", late)
    monkeypatch.setattr(asyncio.subprocess.Process, "communicate", communicate)
    running = asyncio.create_task(Here("toy", "1", tmp_path)._checked(["sleep", "60"]))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
