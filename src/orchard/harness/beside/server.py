"""The parent's side of ``child.py``: one process that has done its imports, a fork of it for each run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchard.core.errors import OrchardError
from orchard.core.tasks import cancel, finish
from orchard.harness.beside.bridge import Bridge
from orchard.harness.beside.environment import Environment

START_SECONDS = 180.0
"""Most seconds until the imports are done; they are slow, and slower on a busy machine."""
FORK_SECONDS = 60.0
"""Most seconds that a server whose imports are done takes for one fork; beyond that it hangs."""
LOG = "harness.log"
"""File in a run's scratch folder that holds what the fork printed."""
_PACKET = 65536
_ROOM_SECONDS = 0.02  # until a full socket is tried again
_BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


class HarnessBroke(OrchardError):
    """The agent program ended in a way that says nothing about the model."""

    code = "harness_broke"


@dataclass
class Fork:
    """One run's process: it leads a session of its own."""

    pid: int
    exited: asyncio.Future[int] = field(repr=False)
    """Its exit code; cancelled if the server is lost."""

    def kill(self) -> None:
        """End it and whatever it started."""
        if not self.exited.done():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """Starts when first used, and again if it was lost. It ends with this process, however that ends.

    Args:
        environment: whose interpreter runs it; installed before the first fork.
        runner: a file that defines ``make_runner``, run there; see ``child.py``.
        variables: environment variables for it and its forks.
    """

    def __init__(self, environment: Environment, runner: Path, variables: Mapping[str, str]) -> None:
        self._environment, self._runner, self._variables = environment, runner, dict(variables)
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._asked: deque[asyncio.Future[Fork]] = deque()
        self._forks: dict[int, Fork] = {}

    async def fork(self, end: socket.socket, home: Path, log: Path) -> Fork:
        """Return a new fork that holds ``end`` of a socket pair, works in ``home`` and logs to ``log``.

        Raises:
            HarnessBroke: there is no server, and none could be started; or it hangs, and was ended.
        """
        async with self._starting:
            if self._listening is None or self._listening.done():
                await self._start(home)
            listening = self._listening
            assert listening is not None
            message = json.dumps({"home": str(home), "log": str(log)}).encode()
            started = await self._ask(message, end, listening)
        try:
            await asyncio.wait([started], timeout=FORK_SECONDS)
        except asyncio.CancelledError:
            started.add_done_callback(_kill_unwanted)
            raise
        if not started.done():
            started.add_done_callback(_kill_unwanted)
            raise await self._hung(listening)
        if started.cancelled():
            raise HarnessBroke(f"{self._environment.package}'s server was lost before the run began")
        return started.result()

    async def run(self, bridge: Bridge, job: dict[str, Any], scratch: Path, seconds: float) -> bool:
        """Do one job in a fork, whose questions ``bridge`` answers; return False if its time ran out.

        Args:
            bridge: the parent's end; the fork holds ``bridge.theirs``.
            job: what the runner gets first.
            scratch: a folder of the run's own; ``home`` and the log are made there.
            seconds: most seconds.

        Raises:
            HarnessBroke: the server was lost.
            OrchardError: what ``bridge`` raised.
        """
        home = scratch / "home"
        try:
            with bridge.theirs:
                home.mkdir(exist_ok=True)
                fork = await self.fork(bridge.theirs, home, scratch / LOG)
        except BaseException:
            bridge.ours.close()  # a fork that is there all the same reads its end, and ends
            raise
        serving = asyncio.create_task(bridge.serve(job), name=f"{self._environment.package}'s bridge")
        try:
            await asyncio.wait([fork.exited, serving], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            if serving.done():
                serving.result()
            if fork.exited.cancelled():
                raise HarnessBroke(f"{self._environment.package}'s server was lost in mid-run")
            return fork.exited.done()
        finally:
            fork.kill()
            serving.cancel()
            await asyncio.wait([serving, fork.exited])
            bridge.ours.close()  # where ``serve`` did not come to it

    async def close(self) -> None:
        """End the server and its forks."""
        if self._listening is not None:
            await cancel(self._listening)
        await self._end_process()

    async def _start(self, folder: Path) -> None:
        await self._end_process()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        log = folder / "server.log"
        argv = [str(self._environment.python), "-I", str(Path(__file__).with_name("child.py")), str(theirs.fileno())]
        try:
            with theirs, log.open("wb") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *argv, str(os.getpid()), str(self._runner), env={**_BASE, "HOME": str(folder), **self._variables},
                    cwd="/", pass_fds=[theirs.fileno()], start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
                    stdout=output, stderr=output,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        self._control = ours
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen(ours, ready), name=f"{self._environment.package}'s server")
        try:
            async with asyncio.timeout(START_SECONDS):
                await ready
        except BaseException as error:  # whatever it is, no further fork may be asked of that server
            await finish(self.close())
            if not isinstance(error, (TimeoutError, HarnessBroke)):
                raise
            words = log.read_text("utf-8", "replace")[-1500:]
            raise HarnessBroke(
                f"{self._environment.package} did not start within {START_SECONDS:.0f} s: {words}"
            ) from error

    async def _ask(self, message: bytes, end: socket.socket, listening: asyncio.Task[None]) -> asyncio.Future[Fork]:
        """Send a request, once there is room for it; return what its answer will be."""
        assert self._control is not None
        try:
            async with asyncio.timeout(FORK_SECONDS):
                while True:
                    try:
                        socket.send_fds(self._control, [message], [end.fileno()])
                        break
                    except BlockingIOError:  # it has yet to read the requests before
                        await asyncio.sleep(_ROOM_SECONDS)
        except TimeoutError:
            raise await self._hung(listening) from None
        except OSError as error:
            raise HarnessBroke(f"{self._environment.package}'s server is lost: {error}") from error
        started: asyncio.Future[Fork] = asyncio.get_running_loop().create_future()
        self._asked.append(started)
        return started

    async def _hung(self, listening: asyncio.Task[None]) -> HarnessBroke:
        """End the server that ``listening`` hears, so that the next fork starts another; return what to say of it."""
        if self._listening is listening and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await cancel(listening)
        return HarnessBroke(f"{self._environment.package}'s server made no fork within {FORK_SECONDS:.0f} s")

    async def _listen(self, control: socket.socket, ready: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while packet := await loop.sock_recv(control, _PACKET):
                self._take(json.loads(packet), ready)
        except ConnectionError:
            pass  # as an end: what it means for each run is settled below
        finally:
            if not ready.done():
                ready.set_exception(HarnessBroke("it ended before it was ready"))
            for future in [*self._asked, *(fork.exited for fork in self._forks.values())]:
                future.cancel()
            self._asked.clear()
            self._forks.clear()
            control.close()

    def _take(self, message: dict[str, int], ready: asyncio.Future[None]) -> None:
        if "started" in message:
            fork = Fork(message["started"], asyncio.get_running_loop().create_future())
            self._forks[fork.pid] = fork
            self._asked.popleft().set_result(fork)
        elif "exited" in message:
            fork = self._forks.pop(message["exited"], None)
            if fork and not fork.exited.done():
                fork.exited.set_result(message["code"])
        elif not ready.done():
            ready.set_result(None)

    async def _end_process(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None


def _kill_unwanted(started: asyncio.Future[Fork]) -> None:
    if not started.cancelled():
        started.result().kill()
