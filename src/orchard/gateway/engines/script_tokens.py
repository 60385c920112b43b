"""A script played in token ids: whole token-exact pipelines without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Literal

from orchard.gateway.engines.script import Step, as_message
from orchard.gateway.errors import ScriptEnded
from orchard.gateway.rendering.base import Renderer
from orchard.gateway.tokens import Ended, TokenRequest, Tokens

SaidTo = Callable[[str], Step]
"""Takes the prompt as the model sees it: special tokens and all."""


class ScriptedTokens:
    """A ``TokenEngine`` that samples step ``n`` for prompt ``n`` of each session, with probability 1.

    Args:
        renderer: spells the steps; that of the ``TokenExact`` around it.
        script: the steps (see ``ScriptEngine``), or a function of the prompt's text that gives one.
        at_end: what a prompt beyond the last step gets: ``error`` (``ScriptEnded``) or ``repeat`` (the last step).
        portion: how many ids come at once.
        latency: seconds before each portion.
        context: most ids of prompt and answer together.
        policy_version: as recorded, until weights are "updated".
    """

    name = "script"

    def __init__(
        self,
        renderer: Renderer,
        script: Sequence[Step] | SaidTo,
        *,
        at_end: Literal["error", "repeat"] = "error",
        portion: int = 8,
        latency: float = 0.0,
        context: int | None = None,
        policy_version: str | None = None,
    ) -> None:
        self._renderer, self._script, self._at_end = renderer, script, at_end
        self._portion, self._latency = portion, latency
        self.context, self.policy_version = context, policy_version
        self._turns: dict[str, int] = {}

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        """Yield the step of this turn."""
        ids = self._renderer.answer(as_message(self._step(request)))
        most = request.sampling.max_tokens
        given = ids if most is None else ids[:most]
        for at in range(0, len(given), self._portion):
            if self._latency:
                await asyncio.sleep(self._latency)
            portion = given[at : at + self._portion]
            yield Tokens(portion, [0.0] * len(portion))
        yield Ended("stop" if len(given) == len(ids) else "length", self.policy_version)

    async def abort(self, session: str) -> None:
        """Nothing goes on between two portions."""

    async def update_weights(self, path: Path, version: str) -> None:
        """Take the version."""
        self.policy_version = version

    async def close(self) -> None:
        """Nothing to release."""

    def _step(self, request: TokenRequest) -> Step:
        if callable(self._script):
            return self._script(self._renderer.text(request.ids))
        turn = self._turns.get(request.session, 0)
        self._turns[request.session] = turn + 1
        if turn < len(self._script):
            return self._script[turn]
        if self._at_end == "repeat" and self._script:
            return self._script[-1]
        raise ScriptEnded(f"the script has {len(self._script)} steps, and this is turn {turn + 1}")
