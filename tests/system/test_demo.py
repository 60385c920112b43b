"""``make demo``'s own command: killed without warning in the middle, and started again."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.traces import started_with, traces
from tests.support.waiting import until

from orchard.rollout.folder import read_run
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.types import SandboxInfo
from orchard.trajectories import RolloutRecord

pytestmark = [pytest.mark.root, pytest.mark.slow]
RUN = "from orchard.cli.main import run; run()"
TASK = "xmltodict@0.14.1..0.14.2"
ROLLOUTS = 10
"""Five policies under two harnesses."""
Start = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def mark() -> str:
    """What the environment of every process of this test's demos holds, and of no other."""
    return f"ORCHARD_TEST_MARK={secrets.token_hex(8)}"


@pytest.fixture
def start(image_home: Path, tmp_path: Path, mark: str) -> Iterator[Start]:
    """Start the demo on the smallest of its tasks, in a process group of its own."""
    running: list[subprocess.Popen[str]] = []
    name, _, value = mark.partition("=")
    env = {**os.environ, "ORCHARD_HOME": str(image_home), name: value}

    def go() -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", RUN, "demo", "--run", str(tmp_path / "run"), "--only", TASK, "--json"]
        running.append(
            subprocess.Popen(
                argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
        )
        return running[-1]

    yield go
    for process in running:
        process.kill()
        process.communicate()


def closings(folder: Path) -> Counter[str]:
    if not (folder / "run.json").exists():
        return Counter()
    with read_run(folder) as run:
        return Counter(record.id for record in run.store.records() if isinstance(record, RolloutRecord))


async def living(backend: LocalBackend) -> Sequence[SandboxInfo]:
    return (await backend.list(limit=1000)).items


async def test_kill_9_half_way_loses_and_doubles_nothing_and_leaves_nothing(
    start: Start, image_home: Path, tmp_path: Path, mark: str
) -> None:
    folder, backend = tmp_path / "run", LocalBackend(LocalSettings(home=image_home))
    first = start()

    async def half_way() -> bool:
        assert first.poll() is None, first.communicate()
        return len(closings(folder)) >= 3 and bool(await living(backend))

    await until(half_way, seconds=200)  # its task is prepared first, where that is not cached
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    left, before = [box.id for box in await living(backend)], closings(folder)
    assert left, "it was killed in the middle of something"
    assert 3 <= len(before) < ROLLOUTS
    await until(lambda: not started_with(mark))

    second = start()
    output, errors = await asyncio.to_thread(second.communicate)
    assert second.returncode == 0, errors
    report = json.loads(output)
    assert (len(report["cells"]), report["surprises"]) == (ROLLOUTS, [])
    after = closings(folder)
    assert set(after.values()) == {1}, "closed twice"
    assert len(after) == ROLLOUTS
    assert set(before) < set(after)
    with read_run(folder) as run:
        tried = Counter(session for record in run.records() for session in record.sessions)
        aborted = {row.session for row in run.store.aborted()}
    assert set(tried.values()) == {1}
    assert aborted, "what it was at is there, marked as aborted"
    assert not aborted & set(tried)

    assert await living(backend) == []
    await backend.close()
    for sandbox_id in left:
        assert traces(image_home, sandbox_id) == []
    assert started_with(mark) == []
    assert not (folder / "scratch").exists()
