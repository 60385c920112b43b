"""Drawing ids, and the log-probability of each under the distribution that it was drawn from."""

from __future__ import annotations

import random
from collections.abc import Sequence

from orchard.gateway.engines.transformers_engine.libraries import Tensor, torch
from orchard.gateway.tokens import Sampling


def draw(logits: Tensor, how: Sequence[Sampling], chance: Sequence[random.Random]) -> list[tuple[int, float]]:
    """Draw one id for each row of ``logits`` ([rows, ids], float32); return it with its log-probability.

    That is after temperature, min_p, top_k and top_p. At temperature 0, where nothing is drawn, it is the model's own.
    Each row takes one number from its own ``chance``, so that what it draws does not depend on its neighbours.
    """
    t = torch()
    heat = [one.temperature or 1.0 for one in how]
    scores = logits / t.tensor(heat, device=logits.device)[:, None]
    for row, one in enumerate(how):
        if one.temperature and (one.top_p < 1 or one.top_k > 0 or one.min_p > 0):
            scores[row] = _cut(scores[row], one)
    logprobs = scores.log_softmax(-1)
    heap = logprobs.exp().cumsum(-1, dtype=t.float64)
    at = t.tensor([one.random() for one in chance], dtype=t.float64, device=logits.device)[:, None]
    drawn = t.searchsorted(heap, at * heap[:, -1:], right=True)
    greedy = t.tensor([[one.temperature == 0] for one in how], device=logits.device)
    ids = t.where(greedy, logprobs.argmax(-1, keepdim=True), drawn)
    return list(zip(ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist(), strict=True))


def _cut(scores: Tensor, how: Sampling) -> Tensor:
    """Return ``scores`` ([ids]) with minus infinity where an id may not be drawn; the likeliest always may."""
    t = torch()
    ordered, places = scores.sort(descending=True)
    out = ordered.softmax(-1) < how.min_p * ordered.softmax(-1)[0]
    if how.top_k > 0:
        out[how.top_k :] = True
    likely = ordered.masked_fill(out, -t.inf).softmax(-1)
    out |= likely.cumsum(-1) - likely >= how.top_p
    out[0] = False
    return t.empty_like(scores).scatter_(0, places, ordered.masked_fill(out, -t.inf))
