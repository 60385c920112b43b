"""``Process``: a handle to a running command, which any number of clients may hold."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from orchard.core.errors import CommandLost, DeadlineExceeded, NotFound
from orchard.sandbox.commands import Bounded, Output, ProcessStatus, status_of
from orchard.sandbox.frames import STREAMS, Frame, Kind, StreamName
from orchard.sandbox.streams import StdinPipe, follow, stream_call
from orchard.sandbox.transport import SILENCE, Call, Transport, query
from orchard.sandbox.types import Result, check_seconds

_POLL = 50.0  # seconds one request waits at the sandbox; the wire allows 60


class Process:
    """A command that was started, or attached to. Dropping the object ends nothing.

    Iterating yields ``Output`` as it comes, from where the last iteration of this object stopped, to the end; a broken
    connection is resumed at its offset.
    """

    def __init__(self, transport: Transport, status: ProcessStatus, *, stdout: int = 0, stderr: int = 0) -> None:
        self._transport, self._status = transport, status
        self._offsets: dict[StreamName, int] = {"stdout": stdout, "stderr": stderr}
        self._stdin = StdinPipe(transport, status.id, sole=False)
        self._sending = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Process({self.id!r}, pid={self.pid}, state={self._status.state!r})"

    @property
    def id(self) -> str:
        """Operation id, by which ``Sandbox.attach`` finds it."""
        return self._status.id

    @property
    def pid(self) -> int | None:
        """Process id inside the sandbox."""
        return self._status.pid

    @property
    def status(self) -> ProcessStatus:
        """What was last heard of it; ``poll`` asks anew."""
        return self._status

    def __aiter__(self) -> AsyncIterator[Output]:
        return self.events()

    async def events(self) -> AsyncGenerator[Output]:
        """Yield output as it comes; both streams, each in order, together by arrival."""
        seen = self._offsets.copy()
        frames = follow(self._transport, None, lambda: stream_call(self.id, "full", self._offsets))
        async with aclosing(frames):
            async for frame in frames:
                if frame.kind in STREAMS:
                    name = STREAMS[frame.kind]
                    at = max(frame.offset, self._offsets[name])
                    data = frame.payload[at - frame.offset :]
                    lost, self._offsets[name] = at - seen[name], at + len(data)
                    seen[name] = self._offsets[name]
                    if data:
                        yield Output(name, data, at, lost)
                elif frame.kind == Kind.GAP:
                    name, following = frame.gap()
                    self._offsets[name] = max(self._offsets[name], following)
                elif frame.kind in (Kind.STATUS, Kind.EXIT):
                    self._status = status_of(json.loads(frame.payload))

    async def text(self, stream: StreamName | None = None) -> AsyncGenerator[str]:
        """Yield output as text, never splitting a character; bytes that are not UTF-8 become U+FFFD.

        Args:
            stream: only this one; None joins both by arrival.
        """
        decoders = _decoders()
        async with aclosing(self.events()) as events:
            async for event in events:
                if stream in (None, event.stream) and (piece := decoders[event.stream].decode(event.data)):
                    yield piece
        for name, decoder in decoders.items():
            if stream in (None, name) and (piece := decoder.decode(b"", final=True)):
                yield piece

    async def lines(self, stream: StreamName | None = None) -> AsyncGenerator[str]:
        r"""Yield lines without their ``\n``; the last one also if nothing ends it.

        Args:
            stream: only this one; None joins both by arrival, each line from one stream.
        """
        decoders = _decoders()
        rests: dict[StreamName, list[str]] = {"stdout": [], "stderr": []}
        async with aclosing(self.events()) as events:
            async for event in events:
                if stream not in (None, event.stream):
                    continue
                head, *others = decoders[event.stream].decode(event.data).split("\n")
                rests[event.stream].append(head)
                for other in others:
                    yield "".join(rests[event.stream])
                    rests[event.stream] = [other]
        for name, decoder in decoders.items():
            if rest := "".join(rests[name]) + decoder.decode(b"", final=True):
                yield rest

    async def send(self, data: bytes | str) -> None:
        """Write to its stdin; returns once the sandbox has taken it all.

        Raises:
            Conflict: stdin is not open (it was started without ``stdin=True``, has closed it, or has ended).
        """
        async with self._sending:
            await self._stdin.send(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        """Let it read EOF. Doing so twice, or after its end, is fine."""
        async with self._sending:
            await self._stdin.feed(b"")

    async def signal(self, name: str | int, *, tree: bool = False) -> None:
        """Send a signal (``"INT"``, ``2``) to the main process, or with ``tree`` to every descendant too.

        A process that has ended is no error. After a broken connection it is not sent twice.
        """
        body = {"signal": str(name).removeprefix("SIG"), "tree": tree}
        reply = await self._transport.request(Call("POST", f"/processes/{self.id}/signal", json=body, safe=False))
        self._status = status_of(reply.json())

    async def resize(self, columns: int, rows: int) -> None:
        """Tell its terminal's size."""
        await self._transport.request(
            Call("POST", f"/processes/{self.id}/resize", json={"cols": columns, "rows": rows})
        )

    async def kill(self) -> ProcessStatus:
        """End its whole tree; returns the final status once nothing of it is left."""
        self._status = status_of((await self._transport.request(Call("DELETE", f"/processes/{self.id}"))).json())
        return self._status

    async def poll(self) -> ProcessStatus | None:
        """Return None while it runs, then the final status."""
        return await self._ask(0.0)

    async def wait(self, timeout: float | None = None) -> ProcessStatus:
        """Return the final status once it has ended.

        Raises:
            DeadlineExceeded: it still runs after ``timeout`` seconds. It goes on.
            CommandLost: the sandbox no longer knows it.
        """
        if timeout is None:
            while (status := await self._ask(_POLL)) is None:
                pass
            return status
        deadline = asyncio.get_running_loop().time() + check_seconds(timeout, "timeout")
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            if status := await self._ask(min(left, _POLL)):
                return status
        raise DeadlineExceeded(f"process {self.id} still runs after {timeout:g} s")

    async def result(self) -> Result:
        """Wait for its end; return what it did, with the bounded view of its output, as ``Sandbox.run`` does."""
        bounded = Bounded()
        return await collect(
            follow(self._transport, None, lambda: stream_call(self.id, "bounded", bounded.offsets)), bounded
        )

    async def _ask(self, wait: float) -> ProcessStatus | None:
        call = Call("GET", f"/processes/{self.id}", query(wait=f"{wait:.3f}" if wait else None), silence=wait + SILENCE)
        try:
            self._status = status_of((await self._transport.request(call)).json())
        except NotFound as error:
            raise CommandLost(f"the sandbox no longer knows process {self.id}") from error
        return None if self._status.running else self._status


def _decoders() -> dict[StreamName, codecs.IncrementalDecoder]:
    decoder = codecs.getincrementaldecoder("utf-8")
    return {"stdout": decoder("replace"), "stderr": decoder("replace")}


async def collect(frames: AsyncGenerator[Frame], bounded: Bounded) -> Result:
    """Take in all ``frames``; return the result that the exit frame completes."""
    async with aclosing(frames):
        async for frame in frames:
            if result := bounded.take(frame):
                return result
    raise CommandLost("the stream ended without an exit")
