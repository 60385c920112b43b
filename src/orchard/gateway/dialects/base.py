"""The seam to the wire: a dialect only translates, between what a harness speaks and the common form.

The common form is that of OpenAI's chat completions. Adding a dialect is a file that fulfils ``Dialect`` and a line in
``orchard.gateway.dialects``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchard.core.errors import OrchardError
from orchard.gateway.dialects.wire import Field
from orchard.gateway.engine import Delta, Final
from orchard.trajectories.messages import Message


@dataclass(frozen=True)
class Origin:
    """What a harness says of itself beside the messages; a bonus, since not each of them says it."""

    agent: str | None = None
    """Which of its agents asks: a thread, a sub-agent; None where it does not say."""
    parent: str | None = None
    """The agent that started this one."""
    kind: str | None = None
    """``compaction``, ``title``, ``summary``, ``subagent`` …, where it says so in as many words."""


@dataclass(frozen=True)
class ModelRequest:
    """One request in the common form."""

    model: str
    messages: list[Message]
    tools: list[Message]
    params: dict[str, Any]
    """Everything else that goes to the engine, in OpenAI's chat words."""
    stream: bool
    origin: Origin = Origin()
    wire: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the dialect itself must know of the request to write the answer."""
    dropped: tuple[str, ...] = ()
    """Fields and tools of the request that no engine could use, by name; kept with the record."""


class EventStream(Protocol):
    """Writes one answer as server-sent events; it has a state of its own and serves one reader."""

    def begin(self) -> bytes:
        """Return what goes out with the headers, before any delta."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Return the events of one delta."""
        ...

    def alive(self) -> bytes:
        """Return what a silent stream is kept open with; some clients count events, and no comments."""
        ...

    def end(self, final: Final) -> bytes:
        """Return the events that end the stream: they leave only once the call is durable."""
        ...

    def failed(self, error: OrchardError) -> bytes:
        """Return the events that end a stream with a final error."""
        ...


class Dialect(Protocol):
    """One wire protocol."""

    name: str
    """As recorded: ``openai.chat`` …."""
    path: str
    """Of its requests, without ``/v1``."""
    id_prefix: str
    """Of the ids under which answers go out."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """What becomes of each field of a request."""
        ...

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read the body of a request.

        Raises:
            InvalidArgument: it is not one that can be answered; ``field`` names what.
        """
        ...

    def answer(self, asked: ModelRequest, response_id: str, model: str, final: Final) -> bytes:
        """Return the body of a whole answer."""
        ...

    def events(self, asked: ModelRequest, response_id: str, model: str) -> EventStream:
        """Return a writer of one streamed answer."""
        ...

    def error_body(self, error: OrchardError) -> dict[str, Any]:
        """Return the body of an error in this dialect's shape."""
        ...

    def told_in_stream(self, error: OrchardError) -> bool:
        """Return whether clients know this final error only as an event of a stream, not by a status."""
        ...
