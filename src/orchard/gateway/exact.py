"""Token-exact answers: prompts become ids here, on top of recorded ids where there are some, and answers are read here.

So a training sample is exactly what the model saw and sampled, whatever the harness makes of it in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from orchard.gateway.engine import Assembly, Delta, EngineRequest, Final, Part, Prompted
from orchard.gateway.engines.running import Call
from orchard.gateway.errors import ContextOverflow, EngineUnavailable
from orchard.gateway.rendering.base import Reader, Renderer
from orchard.gateway.sampling import Asked, asked
from orchard.gateway.tokens import Ended, TokenEngine, TokenRequest, Tokens
from orchard.trajectories import MaskedSpan, PolicySpan, Usage
from orchard.trajectories.messages import Message

Mode = Literal["splice", "template"]


class TokenExact:
    """An ``Engine`` made of one that samples ids and a renderer.

    Args:
        engine: what samples; closed with this.
        renderer: the model's template, tokenizer and syntax.
        mode: ``splice`` keeps recorded ids as they are, reasoning included, and renders only what is new; ``template``
            renders each prompt whole, as a stock server would.
        max_tokens: bound of an answer where the request gives none.
    """

    def __init__(
        self, engine: TokenEngine, renderer: Renderer, *, mode: Mode = "splice", max_tokens: int | None = None
    ) -> None:
        self.engine, self.renderer = engine, renderer
        self._mode: Mode = mode
        self._max_tokens = max_tokens

    @property
    def name(self) -> str:
        """That of what samples."""
        return self.engine.name

    @property
    def policy_version(self) -> str | None:
        """That of what samples."""
        return self.engine.policy_version

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        """Render, sample and read; see ``Engine.complete``."""
        wanted = asked(request.params, self.renderer.stop_ids)
        prompted, head = await asyncio.to_thread(self._prompt, request, wanted)  # a first prompt takes many ms
        forced = self.renderer.encode(head) if head else []
        ids = [*prompted.ids, *forced]
        sampling = wanted.within(self._max_tokens, self._room(len(ids)))
        yield replace(prompted, dropped=wanted.dropped)
        tools = () if wanted.no_calls else request.tools
        reader = self.renderer.reader(prompted.ids, tools, skip=head, stop=wanted.stop)
        answer = _Answer(reader, bool(wanted.stop))
        if forced:  # a part of the answer, of which nothing was left to chance
            yield answer.begin(forced)
        tokens = TokenRequest(request.session, ids, sampling, request.stream)
        async with aclosing(self.engine.generate(tokens)) as parts:
            async for part in parts:
                if isinstance(part, Ended):
                    answer.ended = part
                    break
                kept, deltas = answer.take(part, self.engine.policy_version)
                yield kept
                for delta in deltas:
                    yield Delta(delta)
                if reader.stopped:
                    break
        for delta in answer.finish():
            yield Delta(delta)
        yield self._final(answer, len(prompted.ids), wanted.facts(sampling))

    async def count_tokens(self, messages: Sequence[Message], tools: Sequence[Message]) -> int:
        """See ``CountsTokens``: the prompt is rendered whole."""
        return len(await asyncio.to_thread(self.renderer.render, messages, tools))

    async def update_weights(self, path: Path, version: str) -> None:
        """See ``TokenEngine.update_weights``."""
        await self.engine.update_weights(path, version)

    async def close(self) -> None:
        """Close what samples."""
        await self.engine.close()

    def _prompt(self, request: EngineRequest, wanted: Asked) -> tuple[Prompted, str]:
        """Return the prompt's ids, and the text that begins the answer where a call is forced."""
        renderer, prefix, options = self.renderer, request.prefix, wanted.options
        fresh = None
        if prefix is not None and self._mode == "splice":
            fresh = renderer.extend(prefix.ids, request.messages, prefix.messages, options=options)
        if prefix is None or fresh is None:
            prefix, ids = None, renderer.render(request.messages, request.tools, options=options)
        else:
            ids = [*prefix.ids, *fresh]
        head = renderer.head(ids, wanted.forced_tool) if wanted.forced else ""
        return Prompted(ids, self._mode, renderer.template_hash, len(prefix.ids) if prefix else 0, prefix), head

    def _room(self, prompt: int) -> int | None:
        context = self.engine.context
        if context is not None and prompt >= context:
            raise ContextOverflow(prompt, context)
        return None if context is None else context - prompt

    def _final(self, answer: _Answer, prompt: int, sampling: dict[str, Any]) -> Final:
        ended = answer.end(self.engine.policy_version)
        if ended.finish_reason == "abort":
            raise EngineUnavailable(f"the engine {self.name} gave the answer up", reason="aborted")
        message = answer.message
        calls = ended.finish_reason == "stop" and message.get("tool_calls")
        return Final(
            message=message, finish_reason="tool_calls" if calls else ended.finish_reason,
            usage=Usage(
                prompt_tokens=prompt, completion_tokens=len(answer.ids), cached_tokens=ended.cached_tokens
            ),
            sampling=sampling, policy_version=ended.policy_version, spans=answer.spans(ended),
            stop_string=answer.reader.stop_string,
            masked=answer.masked, sampled_ids=answer.ids, logprobs=answer.logprobs, routed_experts=ended.routed_experts,
        )  # fmt: skip


@dataclass
class _Answer:
    """What was sampled so far."""

    reader: Reader
    stops: bool
    """Whether there are strings that end it: ids are then read one by one."""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    ended: Ended | None = None
    _forced: int = 0
    _cached: int = 0
    _by: Call = field(default_factory=Call)
    """Whose weights sampled what came; counts when the engine's own end is not waited for."""
    _assembly: Assembly = field(default_factory=Assembly)

    def begin(self, forced: list[int]) -> Tokens:
        """Take the beginning that was not sampled."""
        self.ids, self.logprobs, self._forced = list(forced), [0.0] * len(forced), len(forced)
        return Tokens(forced, [0.0] * len(forced))

    def take(self, tokens: Tokens, version: str | None) -> tuple[Tokens, list[Message]]:
        """Take more ids, up to the one in which a string to stop at ends; return these, and what they say.

        Args:
            tokens: what came.
            version: of the weights, where the tokens do not name it.
        """
        count, said = 0, list[Message]()
        while count < len(tokens.ids) and not self.reader.stopped:
            upto = count + 1 if self.stops else len(tokens.ids)
            said += self.reader.feed(tokens.ids[count:upto])
            count = upto
        kept = replace(tokens, ids=tokens.ids[:count], logprobs=tokens.logprobs[:count])
        self.ids += kept.ids
        self.logprobs += kept.logprobs
        self._by.sampled(count, tokens.policy_version or version)
        self._cached = tokens.cached_tokens or self._cached
        return kept, self._said(said)

    def finish(self) -> list[Message]:
        """Return what was held back."""
        if self.ended is None and not self.reader.stopped:
            raise EngineUnavailable("the engine stopped without an end")
        return self._said(self.reader.end())

    def end(self, version: str | None) -> Ended:
        """Return the engine's end; where a string ended the answer before, one of what is known by then."""
        return self.ended or replace(self._by.ended("stop", version), cached_tokens=self._cached)

    def spans(self, ended: Ended) -> list[PolicySpan]:
        """Return whose weights sampled what, counted from the answer's first id."""
        by = self._forced
        return [PolicySpan(version=one.version, start=one.start + by, end=one.end + by) for one in ended.spans]

    @property
    def masked(self) -> list[MaskedSpan]:
        """The last id, where it says more than the string that ended the answer."""
        size = len(self.ids)
        return [MaskedSpan(reason="stop", start=size - 1, end=size)] if self.reader.overshot else []

    @property
    def message(self) -> Message:
        """The assistant message."""
        return self._assembly.message

    def _said(self, deltas: list[Message]) -> list[Message]:
        for delta in deltas:
            self._assembly.add(delta)
        return deltas
