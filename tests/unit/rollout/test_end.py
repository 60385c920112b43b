"""The end of a run: all that its rollouts shared is closed, whatever comes between."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.daemon import DaemonBackend

from orchard.gateway import Gateway
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import open_run
from orchard.rollout.jobs import Bounds
from orchard.sandbox import Orchard


class Closing:
    """A harness's driver that counts how often it is closed, and may fail at it."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.closed, self._trouble = 0, trouble

    async def close(self) -> None:
        self.closed += 1
        if self._trouble is not None:
            raise self._trouble


@contextmanager
def engine_of(path: Path) -> Iterator[RolloutEngine]:
    with open_run(path) as folder, tempfile.TemporaryDirectory(prefix="o-") as boxes:
        orchard = Orchard(backend=DaemonBackend(Path(boxes)))
        yield RolloutEngine(folder, orchard, Gateway(folder.store, {}), Bounds())


async def installed(driver: Closing) -> Any:
    return driver, "1"


async def held(cancelled: asyncio.Event, go_on: asyncio.Event) -> Any:
    """Be an install that takes its time to end."""
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
        await go_on.wait()


def share(engine: RolloutEngine, *works: Any) -> None:
    for number, work in enumerate(works):
        engine._harnesses[str(number)] = asyncio.create_task(cast("Any", work))


def closes(engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that says when the way to the sandboxes is closed."""
    seen, close = list[str](), engine._orchard.close

    async def noted() -> None:
        seen.append("closed")
        await close()

    monkeypatch.setattr(engine._orchard, "close", noted)
    return seen


async def test_a_harness_that_cannot_be_closed_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_of(tmp_path) as engine:
        first, second, seen = Closing(OSError("no")), Closing(), closes(engine, monkeypatch)
        share(engine, installed(first), installed(second))
        await asyncio.wait(engine._harnesses.values())
        await engine.run([])
    assert (first.closed, second.closed, seen) == (1, 1, ["closed"])
    assert "harness 0 could not be closed: no" in caplog.text


async def test_a_second_cancel_keeps_nothing_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(tmp_path) as engine:
        driver, seen, cancelled, go_on = Closing(), closes(engine, monkeypatch), asyncio.Event(), asyncio.Event()
        share(engine, held(cancelled, go_on), installed(driver))
        await asyncio.wait([engine._harnesses["1"]])
        running = asyncio.create_task(engine.run([]))
        await cancelled.wait()
        running.cancel()
        await asyncio.wait([running], timeout=0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (driver.closed, seen) == (1, ["closed"])
