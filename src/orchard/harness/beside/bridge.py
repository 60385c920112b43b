"""The parent's end of a run's bridge: a socket pair, which no other process can speak on, with lines of JSON."""

from __future__ import annotations

import asyncio
import json
import socket
from abc import ABC, abstractmethod
from typing import Any

from orchard.core.errors import OrchardError

_LINE = 64 << 20  # bytes of the longest question that a child may ask


class Bridge(ABC):
    """Answers the questions of one fork, one at a time."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    async def serve(self, job: dict[str, Any]) -> None:
        """Send the job, then answer until the fork closes its end.

        Raises:
            OrchardError: trouble of the sandbox: it ends the run, and the model never reads of it.
        """
        reader, writer = await asyncio.open_unix_connection(sock=self.ours, limit=_LINE)
        try:
            await _send(writer, job)
            while line := await reader.readline():
                await _send(writer, await self.answer(json.loads(line)))
        except ConnectionError as error:
            if isinstance(error, OrchardError):  # some are of both kinds
                raise
            return  # the fork has ended; its exit is looked at elsewhere
        finally:
            writer.transport.abort()
            await self.end()

    @abstractmethod
    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question."""

    async def end(self) -> None:  # noqa: B027 - most have nothing to end
        """End what the questions have started."""


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()
