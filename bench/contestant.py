"""A floor or a peer in a process of its own: ``python contestant.py floor|mini-swe-agent|swe-rex``.

Runs under the interpreter of whoever is measured, so nothing of Orchard is imported. Each line of stdin is a request,
``{"do": "run", ...}``; each line of stdout, after a first one ``ready``, the answer, ``{"seconds": [...], "peak":
bytes}``. The clock runs in here: what the pipe costs is not counted.
"""
# pyright: reportMissingImports=false

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TRUE = "/bin/true"
CHUNK = 1 << 16
THREADS = 32


def timed(work: Callable[[], object], n: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(n):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def held(name: str) -> int:
    """Bytes of this process's memory: ``VmRSS`` now, or ``VmHWM`` at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


class Floor:
    """What the kernel and the plainest tools need."""

    def fork(self, n: int) -> list[float]:
        def once() -> None:
            pid = os.fork()
            if pid == 0:
                os.execv(TRUE, ["true"])
            os.waitpid(pid, 0)

        return timed(once, n)

    def spawn(self, n: int) -> list[float]:
        return timed(lambda: os.waitpid(os.posix_spawn(TRUE, ["true"], os.environ), 0), n)

    def runc(self, bundle: str, state: str, n: int) -> list[float]:
        argv = ["runc", "--root", state, "run", "--bundle", bundle, "orchard-bench"]
        return timed(lambda: subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL), n)

    def output(self, argv: list[str], size: int) -> list[float]:
        def once() -> None:
            got = 0
            with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as process:
                assert process.stdout is not None
                while piece := process.stdout.read(CHUNK):
                    got += len(piece)
            assert got == size, got

        return timed(once, 1)

    def copy(self, source: str, target: str) -> list[float]:
        return timed(lambda: subprocess.run(["cp", source, target], check=True), 1)

    def alive(self, bundle: str, state: str, count: int) -> dict[str, Any]:
        """Start idle containers, four at once, as the local backend does."""

        def one(number: int) -> None:
            argv = ["runc", "--root", state, "run", "--detach", "--bundle", bundle, f"orchard-bench-{number}"]
            null = subprocess.DEVNULL
            subprocess.run(argv, check=True, stdin=null, stdout=null, stderr=null)

        with ThreadPoolExecutor(4) as pool:
            seconds = timed(lambda: list(pool.map(one, range(count))), 1)
        return {"seconds": seconds, "answered": count}

    def release(self, state: str, count: int) -> list[float]:
        for number in range(count):
            subprocess.run(["runc", "--root", state, "delete", "--force", f"orchard-bench-{number}"], check=False)
        return []


class MiniSweAgent:
    """mini-swe-agent's ``LocalEnvironment``: each command by ``subprocess``, through a shell, all output in memory."""

    def __init__(self) -> None:
        from minisweagent.environments.local import LocalEnvironment

        self._make = LocalEnvironment
        self._environment = LocalEnvironment()
        self._held: list[Any] = []

    def create(self, n: int) -> list[float]:
        return timed(lambda: self._true(self._make()), n)

    def run(self, n: int) -> list[float]:
        return timed(lambda: self._true(self._environment), n)

    def output(self, argv: list[str], size: int) -> list[float]:
        def once() -> None:
            assert len(self._environment.execute({"command": " ".join(argv)})["output"]) == size

        return timed(once, 1)

    def alive(self, count: int) -> dict[str, Any]:
        def all_of_them() -> None:
            self._held = [self._make() for _ in range(count)]
            for environment in self._held:
                self._true(environment)

        return {"seconds": timed(all_of_them, 1), "answered": count}

    def _true(self, environment: Any) -> None:
        assert environment.execute({"command": "true"})["returncode"] == 0


class SweRex:
    """SWE-ReX's ``LocalDeployment``: ``execute`` by ``subprocess``, sessions by a bash on a terminal."""

    def __init__(self) -> None:
        from swerex.deployment.local import LocalDeployment
        from swerex.runtime import abstract

        self._make, self._words = LocalDeployment, abstract
        self._loop = asyncio.new_event_loop()
        self._deployment = LocalDeployment()
        self._wait(self._deployment.start())
        self._held: list[Any] = []

    def create(self, n: int) -> list[float]:
        async def once() -> None:
            deployment = self._make()
            await deployment.start()
            await self._true(deployment.runtime)
            await deployment.stop()

        return timed(lambda: self._wait(once()), n)

    def run(self, n: int) -> list[float]:
        return timed(lambda: self._wait(self._true(self._deployment.runtime)), n)

    def output(self, argv: list[str], size: int) -> list[float]:
        command = self._words.Command(command=argv, timeout=300)

        def once() -> None:
            assert len(self._wait(self._deployment.runtime.execute(command)).stdout) == size

        return timed(once, 1)

    def put(self, source: str, target: str) -> list[float]:
        request = self._words.UploadRequest(source_path=source, target_path=target)
        return timed(lambda: self._wait(self._deployment.runtime.upload(request)), 1)

    def get(self, source: str) -> list[float]:
        request = self._words.ReadFileRequest(path=source, encoding="latin-1", errors="strict")
        return timed(lambda: self._wait(self._deployment.runtime.read_file(request)), 1)

    def alive(self, count: int) -> dict[str, Any]:
        """Bash sessions, each with one ``true`` answered; starting one sleeps, hence the threads."""

        def one(_: int) -> bool:
            return asyncio.run(self._session())

        with ThreadPoolExecutor(THREADS) as pool:
            answers: list[bool] = []
            seconds = timed(lambda: answers.extend(pool.map(one, range(count))), 1)
        return {"seconds": seconds, "answered": sum(answers)}

    async def _session(self) -> bool:
        deployment = self._make()
        self._held.append(deployment)
        await deployment.start()
        await deployment.runtime.create_session(self._words.CreateBashSessionRequest(startup_timeout=60))
        seen = await deployment.runtime.run_in_session(self._words.BashAction(command="true"))
        return seen.exit_code == 0

    async def _true(self, runtime: Any) -> None:
        assert (await runtime.execute(self._words.Command(command=["true"]))).exit_code == 0

    def _wait(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


WHO: dict[str, Callable[[], Any]] = {"floor": Floor, "mini-swe-agent": MiniSweAgent, "swe-rex": SweRex}


def answer(who: Any, request: dict[str, Any]) -> dict[str, Any]:
    work = getattr(who, request.pop("do"))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = held("VmRSS")
    got = work(**request)
    told = got if isinstance(got, dict) else {"seconds": got}
    return {**told, "peak": max(0, held("VmHWM") - before)}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is no answer
    who = WHO[sys.argv[1]]()
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(who, json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
