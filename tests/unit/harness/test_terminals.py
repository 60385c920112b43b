"""OpenHands' terminals on a real sandboxd: none is left where one cannot be ended, or where its start is cut off."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchard.core.errors import Unavailable
from orchard.harness.openhands.bridge import Tools
from orchard.harness.protocol import HarnessRequest
from orchard.sandbox import Sandbox
from orchard.sandbox.transport import Call, Transport

OPEN = {"do": "open", "env": {}}


@pytest.fixture
def tools(request_for: Callable[..., HarnessRequest]) -> Iterator[Tools]:
    made = Tools(request_for("http://127.0.0.1:1"))
    with made.ours, made.theirs:
        yield made


async def running(box: Sandbox) -> list[str]:
    return [status.id for status in await box.processes() if status.running]


async def test_a_terminal_that_cannot_be_ended_keeps_no_other(
    tools: Tools, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = [(await tools.answer(OPEN))["terminal"] for _ in range(3)]
    assert sorted(await running(box)) == sorted([first, second, third])

    async def refuse() -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(tools._terminals[first].process, "kill", refuse)
    await tools.end()
    assert await running(box) == [first]
    assert all(terminal._reading.done() for terminal in tools._terminals.values())


async def test_a_shell_whose_start_is_cut_off_is_ended(
    tools: Tools, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, started = Transport.request, asyncio.Event()

    async def unanswered(self: Transport, call: Call) -> Any:
        reply = await request(self, call)
        if (call.method, call.path) == ("POST", "/processes"):
            started.set()
            await asyncio.Event().wait()
        return reply

    monkeypatch.setattr(Transport, "request", unanswered)
    opening = asyncio.create_task(tools.answer(OPEN))
    await started.wait()
    assert len(await running(box)) == 1
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert await running(box) == []
