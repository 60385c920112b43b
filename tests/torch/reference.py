"""What served tokens are held against: a plain forward pass of the library's own model. And how they are asked for."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchard.gateway.engines.transformers_engine import libraries
from orchard.gateway.tokens import Ended, Sampling, TokenEngine, TokenRequest, Tokens

CLOSE = 1e-4


@dataclass
class Said:
    """A whole answer."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    end: Ended

    @property
    def whole(self) -> list[int]:
        return self.prompt + self.ids


async def ask(engine: TokenEngine, ids: Sequence[int], session: str = "s", **how: Any) -> Said:
    said = Said(list(ids), [], [], Ended("abort"))
    async for part in engine.generate(TokenRequest(session, ids, Sampling(**{"max_tokens": 24, **how}))):
        if isinstance(part, Tokens):
            said.ids += part.ids
            said.logprobs += part.logprobs
        else:
            said.end = part
    return said


async def ask_all(engine: TokenEngine, prompts: Sequence[Sequence[int]], **how: Any) -> list[Said]:
    """Ask all at once, each in its own session, with a seed of its own."""
    asked = (ask(engine, ids, f"s{at}", seed=at, **how) for at, ids in enumerate(prompts))
    return list(await asyncio.gather(*asked))


def some_ids(count: int, seed: int = 0, most: int = 256) -> list[int]:
    chance = random.Random(f"{seed}")
    return [chance.randrange(most) for _ in range(count)]


@cache
def plain_model(folder: Path) -> Any:
    return libraries.transformers().AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def plain_logprobs(folder: Path, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """The log-probability of each id but the first, given those before it."""
    torch = libraries.torch()
    with torch.inference_mode():
        logits = plain_model(folder)(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1]
        scores = (logits.float() / temperature).log_softmax(-1)
        return scores.gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0].tolist()


def farthest(one: Sequence[float], other: Sequence[float]) -> float:
    assert len(one) == len(other) > 0
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def off_by(folder: Path, said: Said, temperature: float = 1.0) -> float:
    """How far the served log-probabilities are from a plain forward pass."""
    return farthest(said.logprobs, plain_logprobs(folder, said.whole, temperature)[len(said.prompt) - 1 :])
