"""``orchard sandbox exec`` on a real sandboxd: a command that nobody waits for any more is ended."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from io import FileIO
from pathlib import Path

import pytest
from tests.support.daemon import SANDBOXD, DaemonBackend, start_unheard

from orchard.cli import streaming
from orchard.sandbox import Orchard, Sandbox


@pytest.fixture
async def box(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    assert SANDBOXD.exists(), "make sandboxd"
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        backend = DaemonBackend(Path(folder))
        monkeypatch.setattr(streaming, "Orchard", lambda url: Orchard(backend=backend))
        async with Orchard(backend=backend) as orchard, orchard.sandbox("host") as made:
            yield made


async def running(box: Sandbox) -> list[str]:
    return [status.id for status in await box.processes() if status.running]


def run(box: Sandbox, *argv: str, detach: bool = False) -> "asyncio.Task[int]":
    return asyncio.create_task(streaming.run_in(None, box.id, list(argv), None, {}, stdin=False, detach=detach))


@pytest.mark.parametrize("detach", [False, True])
async def test_an_interrupt_while_it_is_being_started_ends_it(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, detach: bool
) -> None:
    started = start_unheard(monkeypatch)
    work = run(box, "sleep", "600", detach=detach)
    await started.wait()
    assert len(await running(box)) == 1
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await running(box) == []


@pytest.fixture
def full() -> Iterator[FileIO]:
    with FileIO("/dev/full", "w") as file:
        yield file


async def test_output_that_finds_no_room_ends_it(box: Sandbox, full: FileIO, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        work = run(box, "sh", "-c", "echo words; sleep 600")
        with pytest.raises(OSError, match="No space left"):
            await work
    assert await running(box) == []


async def test_a_detached_command_goes_on(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(streaming.console, "out", gone)
    with pytest.raises(BrokenPipeError):
        await run(box, "sleep", "600", detach=True)
    assert len(await running(box)) == 1
