"""A model whose context overflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from orchard.gateway import ContextOverflow, Engine, EngineRequest
from orchard.gateway.engine import Part

CONTEXT = 200_000
"""What a harness is told of the model's context; prompts of the toy are far below, and it may believe it ever after."""


class Overflowing:
    """Answers as ``inner``, but says once that the context is full: as soon as a conversation holds two results."""

    policy_version = None

    def __init__(self, inner: Engine) -> None:
        self._inner, self.name, self.full = inner, inner.name, False

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        results = sum(message.get("role") == "tool" for message in request.messages)
        if results >= 2 and not self.full:
            self.full = True
            raise ContextOverflow(CONTEXT + 1, CONTEXT)
        async with aclosing(self._inner.complete(request)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        await self._inner.close()
