"""The toy's scripted model in token ids: a small tokenizer made on the spot, so a token-exact record needs no model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchard.gateway import Engine, EngineRequest, ScriptEngine
from orchard.gateway.engine import Part
from orchard.harness import check as toy

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from orchard.gateway.exact import Mode
    from orchard.gateway.rendering import Renderer

Answer = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], dict[str, Any]]
_TURNS = ("<|im_start|>", "<|im_end|>")
_TAGS = ("<tool_call>", "</tool_call>")
_VOCABULARY = 4000


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
        self._renderer = small_renderer()

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
def small_renderer() -> Renderer:
    """Return a renderer of the ChatML kind over ``small_tokenizer``.

    Raises:
        ImportError: the extra ``tokens`` is not installed.
    """
    from orchard.gateway.rendering.load import make_renderer

    return make_renderer(small_tokenizer(), None, {"eos_token": _TURNS[1]}, family="chatml")


def small_tokenizer() -> Tokenizer:
    """Return a tokenizer of a few thousand pieces, trained on this package's own text in a moment.

    They are about as long as a real model's, so a harness that counts on a window of usual size works as it does there.

    Raises:
        ImportError: the extra ``tokens`` is not installed.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    room = Path(toy.__file__).parent
    tokenizer.train_from_iterator([path.read_text() for path in sorted(room.glob("*.py"))], trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _TURNS])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in _TAGS])
    return tokenizer
