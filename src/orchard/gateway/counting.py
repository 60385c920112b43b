"""Counting the tokens of a prompt without sampling: by the engine where it can, else an estimate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.engine import Engine
from orchard.trajectories.messages import Message

_BYTES_PER_TOKEN = 4


@runtime_checkable
class CountsTokens(Protocol):
    """What an engine may also do."""

    async def count_tokens(self, messages: Sequence[Message], tools: Sequence[Message]) -> int:
        """Return how many tokens the prompt of these messages and tools has.

        Raises:
            EngineUnavailable: may be tried again.
            EngineRefused: the prompt cannot be rendered.
        """
        ...


async def count_tokens(engine: Engine, asked: ModelRequest) -> tuple[int, bool]:
    """Return the tokens of a prompt, and whether that is an estimate: a token for each four bytes."""
    if isinstance(engine, CountsTokens):
        return await engine.count_tokens(asked.messages, asked.tools), False
    size = len(json.dumps([asked.messages, asked.tools], ensure_ascii=False).encode())
    return -(-size // _BYTES_PER_TOKEN), True
