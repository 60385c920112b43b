"""OpenHands' terminals on a real sandboxd: where one cannot be ended, the others are."""

from collections.abc import Callable, Iterator

import pytest

from orchard.core.errors import Unavailable
from orchard.harness.openhands.bridge import Tools
from orchard.harness.protocol import HarnessRequest
from orchard.sandbox import Sandbox

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
