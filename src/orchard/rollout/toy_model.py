"""The toy's scripted model in token ids: a tokenizer of single bytes, so that a token-exact record needs no model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING, Any

from orchard.gateway import Engine, EngineRequest, ScriptEngine
from orchard.gateway.engine import Part
from orchard.harness import check as toy

if TYPE_CHECKING:
    from orchard.gateway.exact import Mode
    from orchard.gateway.rendering import Renderer

Answer = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], dict[str, Any]]
_TURNS = ("<|im_start|>", "<|im_end|>")
_TAGS = ("<tool_call>", "</tool_call>")


class ToyModel:
    """An ``Engine`` that samples the answers of a function of messages and tools, each id with probability 1.

    Args:
        answer: gives the steps; those of the toy repair by default.
        mode: see ``TokenExact``.
    """

    name = "script"
    policy_version = None

    def __init__(self, answer: Answer = toy.answer, mode: Mode = "splice") -> None:
        self._answer: Answer = answer
        self._mode: Mode = mode
        self._renderer = byte_renderer()

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        """See ``Engine.complete``."""
        from orchard.gateway.engines.script_tokens import ScriptedTokens
        from orchard.gateway.exact import TokenExact

        step = self._answer(request.messages, request.tools)
        exact = TokenExact(ScriptedTokens(self._renderer, [step]), self._renderer, mode=self._mode)
        async with aclosing(exact.complete(request)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        """Nothing to release."""


def toy_model() -> Engine:
    """Return the toy's model: in token ids where the extra ``tokens`` is installed, else in text."""
    try:
        return ToyModel()
    except ImportError:
        return ScriptEngine(toy.answer)


@cache
def byte_renderer() -> Renderer:
    """Return a renderer of the ChatML kind whose tokens are bytes, and a few that mark turns and tool calls.

    Raises:
        ImportError: the extra ``tokens`` is not installed.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from orchard.gateway.rendering.load import make_renderer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _TURNS])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in _TAGS])
    return make_renderer(tokenizer, None, {"eos_token": "<|im_end|>"}, family="chatml")
