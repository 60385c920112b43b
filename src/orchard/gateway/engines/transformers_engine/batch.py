"""The running batch: answers join and leave it at each step, and each step runs the model once.

An answer is its ids, prompt first. What of them is not yet kept goes through the model, a prompt in portions beside the
others' single ids; after the last one the next id is drawn. So a prompt, an answer whose weights were replaced and one
that was set back for want of memory are all the same: ids that are not kept.

Used by one thread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchard.core.errors import OrchardError
from orchard.gateway.engines.transformers_engine.attention import Piece
from orchard.gateway.engines.transformers_engine.libraries import Tensor
from orchard.gateway.engines.transformers_engine.memory import LEAST, Kept, Memory, shared_ids
from orchard.gateway.engines.transformers_engine.model import Model
from orchard.gateway.engines.transformers_engine.sampling import draw
from orchard.gateway.errors import ContextOverflow, EngineRefused, EngineUnavailable
from orchard.gateway.tokens import Ended, TokenRequest, Tokens
from orchard.trajectories import PolicySpan

_PORTION = 512
"""Ids of prompts that go through the model in one step: what a running answer waits for a new one, at most."""


@dataclass(eq=False)
class Answer:
    """One answer, waiting or running."""

    request: TokenRequest
    give: Callable[[Tokens | Ended | OrchardError], None]
    """Takes what it yields; called in the batch's thread."""
    ids: list[int] = field(init=False)
    """The prompt, and what was sampled."""
    kept: Kept | None = None
    """While it runs."""
    cached: int | None = None
    """Ids of the prompt that were found in memory."""
    spans: list[PolicySpan] = field(default_factory=list[PolicySpan])

    def __post_init__(self) -> None:
        self.ids = list(self.request.ids)
        self.chance = random.Random(self.request.sampling.seed)

    @property
    def sampled(self) -> int:
        """How many ids were sampled."""
        return len(self.ids) - len(self.request.ids)

    def add(self, sampled: int, logprob: float, version: str) -> None:
        """Take an id that these weights sampled, and hand it on."""
        at = self.sampled
        begun = self.spans.pop() if self.spans and self.spans[-1].version == version else None
        self.spans.append(PolicySpan(version=version, start=begun.start if begun else at, end=at + 1))
        self.ids.append(sampled)
        self.give(Tokens([sampled], [logprob], version, self.cached or 0))


class Batch:
    """The answers of one model.

    Args:
        model: what samples.
        memory: where it keeps keys and values; holds ``context`` ids at least.
        version: of the model's weights.
        context: most ids of prompt and answer together.
        most: answers that run at once; others wait.
    """

    def __init__(self, model: Model, memory: Memory, version: str, *, context: int, most: int) -> None:
        self._model, self._memory, self.version = model, memory, version
        self.context, self._most = context, most
        self._waiting: deque[Answer] = deque()
        self._running: list[Answer] = []
        """The longest running first."""
        self.computed = 0
        """Ids that went through the model."""

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._waiting or self._running)

    def add(self, answer: Answer) -> None:
        """Let an answer wait for its turn, or refuse it."""
        refusal = self._refusal(answer.request)
        if refusal is not None:
            answer.give(refusal)
        else:
            self._waiting.append(answer)

    def _refusal(self, request: TokenRequest) -> EngineRefused | None:
        asked, ids = request.sampling, request.ids
        neutral = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
        foreign = [name for name, value in neutral.items() if getattr(asked, name) != value]
        foreign += [name for name in ("logit_bias", "grammar") if getattr(asked, name)]
        if foreign:
            return EngineRefused(f"the transformers engine does not offer {', '.join(foreign)}")
        if asked.temperature < 0 or not 0 <= asked.top_p <= 1 or not 0 <= asked.min_p <= 1 or asked.top_k < 0:
            return EngineRefused(f"no distribution can be made of these sampling parameters: {asked}")
        if asked.max_tokens is not None and asked.max_tokens < 1:
            return EngineRefused(f"max_tokens must be 1 or more, not {asked.max_tokens}")
        if len(ids) >= self.context:
            return ContextOverflow(len(ids), self.context)
        if not ids or min(ids) < 0 or max(ids) >= self._model.vocabulary:
            return EngineRefused(f"a prompt is one id or more, each from 0 to {self._model.vocabulary - 1}")
        return None

    def end(self, whose: Callable[[Answer], bool]) -> None:
        """Give up answers; what is kept of them stays for the next prompt."""
        for answer in [one for one in (*self._running, *self._waiting) if whose(one)]:
            self._leave(answer)
            answer.give(self._ended(answer, "abort"))

    def renew(self, weights: dict[str, Tensor], version: str) -> None:
        """Go on with other weights: what was kept is forgotten, running answers are computed anew from their ids."""
        self._model.replace(weights)
        self._memory.forget()
        self.version = version

    def step(self) -> None:
        """Let waiting answers join, run the model once, and draw the next ids."""
        try:
            self._join()
            if pieces := self._pieces():
                self._advance(pieces)
        except Exception as fault:  # noqa: BLE001 — the seam to torch: out of memory, a broken device …; told to all
            for answer in self._running:
                answer.kept = None
                answer.give(EngineUnavailable(f"the model could not be run: {fault!r}"))
            self._running.clear()
            self._memory.clear()

    def _join(self) -> None:
        """Let those begin who find room, and whose prompts share nothing that is just being computed."""
        while self._waiting and len(self._running) < self._most:
            answer = self._waiting[0]
            if self._running and not self._memory.fits(len(answer.ids)):
                return
            if any(_computes(one, answer.ids[:-1]) for one in self._running):
                return
            self._waiting.popleft()
            self._running.append(answer)
            answer.kept = self._memory.take(answer.request.session, answer.ids)
            if answer.cached is None:
                answer.cached = len(answer.kept.ids)

    def _pieces(self) -> list[tuple[Answer, Piece]]:
        pieces: list[tuple[Answer, Piece]] = []
        portion = _PORTION
        for answer in list(self._running):
            kept = answer.kept
            if kept is None:
                continue  # set back meanwhile
            start = len(kept.ids)
            missing = len(answer.ids) - start
            count = missing if missing == 1 else min(missing, portion)
            if count and self._has_room(answer, kept, start + count):
                pieces.append((answer, Piece(kept, answer.ids[start : start + count])))
                portion -= count if missing > 1 else 0
        return pieces

    def _has_room(self, answer: Answer, kept: Kept, length: int) -> bool:
        """Make room; where all is taken, the youngest is set back, so that the oldest always comes to its end."""
        while not self._memory.reserve(kept, length):
            youngest = self._running.pop()
            if youngest.kept is not None:
                self._memory.drop(youngest.kept)
            youngest.kept = None
            self._waiting.appendleft(youngest)
            if youngest is answer:
                return False
        return True

    def _advance(self, pieces: list[tuple[Answer, Piece]]) -> None:
        last: list[int] = []
        whole: list[Answer] = []
        at = 0
        for answer, piece in pieces:
            at += len(piece.ids)
            if piece.start + len(piece.ids) == len(answer.ids):
                last.append(at - 1)
                whole.append(answer)
        logits = self._model.forward([piece for _, piece in pieces], last)
        self.computed += at
        if whole:
            drawn = draw(logits, [one.request.sampling for one in whole], [one.chance for one in whole])
            for answer, (sampled, logprob) in zip(whole, drawn, strict=True):
                answer.add(sampled, logprob, self.version)
                self._end_if_over(answer, sampled)

    def _end_if_over(self, answer: Answer, sampled: int) -> None:
        how = answer.request.sampling
        stopped = sampled in how.stop_ids or sampled in self._model.ends
        if stopped or answer.sampled == how.max_tokens or len(answer.ids) == self.context:
            self._leave(answer)
            answer.give(self._ended(answer, "stop" if stopped else "length"))

    def _leave(self, answer: Answer) -> None:
        if answer in self._waiting:
            self._waiting.remove(answer)
            return
        self._running.remove(answer)
        if answer.kept is not None:
            self._memory.give_back(answer.kept)
            answer.kept = None

    def _ended(self, answer: Answer, reason: Literal["stop", "length", "abort"]) -> Ended:
        spans = tuple(answer.spans) if len(answer.spans) > 1 else ()
        version = answer.spans[-1].version if answer.spans else self.version
        return Ended(reason, version, spans, answer.cached or 0)


def _computes(running: Answer, prompt: Sequence[int]) -> bool:
    """Whether an answer is computing what a prompt could have from it a little later."""
    held = len(running.kept.ids) if running.kept else 0
    return shared_ids(running.ids, prompt) >= held + LEAST
