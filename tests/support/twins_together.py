"""Many twins in one: a check that holds under all of them at once holds under each, unless two hide each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.twin import Ask, Twin

from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.frames import Frame
from orchard.sandbox.protocol import Backend


class _Together:
    """The hooks of many twins, one after the other."""

    def __init__(self, twins: Sequence[Twin]) -> None:
        self._twins = twins
        self._starts = [twin.start for twin in twins if twin.start]
        self._frames = [twin.frame for twin in twins if twin.frame]
        self._requests = [twin.request for twin in twins if twin.request]

    def start(self, spec: dict[str, Any]) -> None:
        for hook in self._starts:
            hook(spec)

    async def started(self, spec: dict[str, Any], ask: Ask) -> None:
        for twin in self._twins:
            if twin.started:
                await twin.started(spec, ask)

    def frame(self, spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
        frames = [one]
        for hook in self._frames:
            frames = [changed for each in frames for changed in hook(spec, each)]
        return frames

    def request(self, method: str, target: str, sandbox_id: str) -> str | int | None:
        changed: str | None = None
        for hook in self._requests:
            answer = hook(method, changed or target, sandbox_id)
            if isinstance(answer, int):
                return answer
            changed = answer or changed
        return changed

    def answer(self, method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
        for twin in self._twins:
            if twin.answer and target.startswith(twin.answers):
                status, body = twin.answer(method, target, status, body)
        return status, body

    @asynccontextmanager
    async def gate(self, spec: dict[str, Any]) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for twin in self._twins:
                if twin.gate and (gate := twin.gate(spec)) is not None:
                    await stack.enter_async_context(gate)
            yield

    def wrap(self, inner: Backend) -> Wrapped:
        wrapped = Wrapped(inner)
        for twin in self._twins:
            wrapped = wrapped if twin.wrap is Wrapped else twin.wrap(wrapped)
        return wrapped


def together(twins: Sequence[Twin]) -> Twin:
    """A twin that breaks all that ``twins`` break, but for what they patch in this process."""
    they = _Together(twins)
    return Twin(
        0, "all of it", they.start, they.started, they.frame, they.request, they.answer,
        tuple(prefix for twin in twins for prefix in twin.answers), they.gate, they.wrap,
        "\n".join(twin.before for twin in twins),
    )  # fmt: skip
