"""How long an answer may be silent: what a sandbox does at once has a bound, since its node may be dead."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import cast

import pytest

from orchard.core.errors import Unavailable
from orchard.sandbox.box import Sandbox
from orchard.sandbox.protocol import Backend
from orchard.sandbox.sessions import Sessions
from orchard.sandbox.transport import SILENCE, Call, Reply, Transport
from orchard.sandbox.types import Endpoint, SandboxInfo, State

NOW = datetime.now(UTC)
INFO = SandboxInfo("sb-x", State.READY, "x", None, {}, NOW, NOW, "x")
Ask = Callable[[Sandbox], Awaitable[object]]
AT_ONCE: list[Ask] = [
    Sandbox.renew, Sandbox.lease, Sandbox.stats, Sandbox.health, Sandbox.processes, lambda box: box.extend(60),
    lambda box: box.attach("p"), lambda box: box.start("true"),
]  # fmt: skip
UNBOUNDED: list[Ask] = [lambda box: box.files.write("a", b""), lambda box: box.files.remove("a")]


@pytest.mark.parametrize(
    ("ask", "silence"), [*((each, SILENCE) for each in AT_ONCE), *((each, None) for each in UNBOUNDED)]
)
async def test_an_answer_has_a_bound_unless_its_work_has_none(
    ask: Ask, silence: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Call] = []

    async def lost(self: Transport, call: Call) -> Reply:
        sent.append(call)
        raise Unavailable("no answer")

    monkeypatch.setattr(Transport, "request", lost)
    sessions = Sessions()
    box = Sandbox(INFO, Endpoint("http://127.0.0.1:1", "/v1", {}, "sb-x"), cast("Backend", None), sessions)
    with pytest.raises(Unavailable):
        await ask(box)
    assert [call.silence for call in sent] == [silence]
    await sessions.close()
