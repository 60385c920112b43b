"""The parent's end of the bridge: a socket pair, which no other process can speak on."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from orchard.core.errors import OrchardError
from orchard.harness.protocol import HarnessRequest, ToolEvent
from orchard.harness.shell import Observation, Shell

_LINE = 64 << 20  # bytes of the longest command that a child may send
_KEEP = 4 << 20  # bytes of one output that mini-swe-agent sees; it cuts what the model reads itself
_EVENT = 10_000  # characters of one output that the trajectory keeps


class Bridge:
    """Answers one child's commands by running them in ``request.box``, one at a time."""

    def __init__(self, request: HarnessRequest) -> None:
        self._request = request
        self._shell = Shell(request.box, request.workdir)
        self.events: list[ToolEvent] = []
        self.trouble: OrchardError | None = None
        """What befell the sandbox, where that ended the run."""
        self.ours, self.theirs = socket.socketpair()

    async def serve(self, job: dict[str, Any]) -> None:
        """Send the job, then answer until the child closes its end."""
        reader, writer = await asyncio.open_unix_connection(sock=self.ours, limit=_LINE)
        try:
            _send(writer, job)
            while line := await reader.readline():
                _send(writer, await self._answer(str(json.loads(line)["command"])))
                await writer.drain()
        except ConnectionError:
            return  # the child has ended; its exit is looked at elsewhere
        finally:
            writer.close()

    async def _answer(self, command: str) -> dict[str, Any]:
        try:
            seen = await self._shell.run(command, timeout=self._request.limits.command_seconds, keep=_KEEP)
        except OrchardError as error:
            self.trouble = error
            return {"trouble": str(error)}
        self.events.append(_shortened(seen))
        code = -1 if seen.exit_code is None else seen.exit_code
        return {"output": seen.output, "returncode": code, "exception_info": seen.note}


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _shortened(seen: Observation) -> ToolEvent:
    event, output = seen.event, seen.output
    if len(output) <= _EVENT:
        return event
    half = _EVENT // 2
    note = f"\n[… {len(output) - _EVENT} characters left out here …]\n"
    return ToolEvent(
        event.call_id, event.name, event.arguments, output[:half] + note + output[-half:], event.exit_code,
        event.seconds, event.error,
    )  # fmt: skip
