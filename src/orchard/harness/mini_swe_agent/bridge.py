"""The parent's end of the bridge: mini-swe-agent's commands, run in one sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchard.harness.beside.bridge import Bridge
from orchard.harness.native import clipped
from orchard.harness.protocol import HarnessRequest, ToolEvent
from orchard.harness.shell import Shell

_KEEP = 4 << 20  # bytes of one output that mini-swe-agent sees; it cuts what the model reads itself


class Commands(Bridge):
    """Runs one fork's commands in ``request.box``."""

    def __init__(self, request: HarnessRequest) -> None:
        super().__init__()
        self._seconds = request.limits.command_seconds
        self._shell = Shell(request.box, request.workdir)
        self.events: list[ToolEvent] = []

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Run one command; see ``Bridge.answer``."""
        seen = await self._shell.run(str(question["command"]), timeout=self._seconds, keep=_KEEP)
        self.events.append(replace(seen.event, output=clipped(seen.output)))
        code = -1 if seen.exit_code is None else seen.exit_code
        return {"output": seen.output, "returncode": code, "exception_info": seen.note}
