"""Attention over a ragged batch: pieces of any lengths of any conversations in one row, without padding.

All else in a transformer works on each id by itself, so a batch is one row of ids. Only attention must know which
conversation an id is of: each piece sees what is kept of its own, and nothing of its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchard.core.errors import Unsupported
from orchard.gateway.engines.transformers_engine.libraries import Tensor, torch, transformers
from orchard.gateway.engines.transformers_engine.memory import Kept

NAME = "orchard_ragged"
"""Under which transformers knows ``attend``. It makes no mask for a name without a mask function."""


@dataclass(frozen=True)
class Piece:
    """Ids that go through the model together, next to each other in one conversation."""

    kept: Kept
    ids: Sequence[int]

    @property
    def start(self) -> int:
        """Position of the first id."""
        return len(self.kept.ids)


def register() -> None:
    """Make ``attend`` known to transformers."""
    transformers().AttentionInterface.register(NAME, attend)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: object, **options: Any
) -> tuple[Tensor, None]:
    """Keep the pieces' keys and values, and return what each id sees: [1, ids, heads, width].

    Args:
        module: the attention layer; its ``layer_idx`` is where keys and values are kept.
        query: [1, heads, ids, width].
        key: [1, groups, ids, width]; ``value`` likewise.
        options: ``pieces`` as given to the model's forward, and what the architecture asks for.

    Raises:
        Unsupported: the architecture asks for what is not done here, or does not pass ``pieces`` on.
    """
    pieces: Sequence[Piece] | None = options.get("pieces")
    asked = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if pieces is None or asked:
        what = f"its attention asks for {', '.join(asked)}" if asked else "its attention takes no arguments of ours"
        raise Unsupported(f"the embedded engine cannot run {type(module).__name__}: {what}")
    seen: list[Tensor] = []
    at = 0
    for piece in pieces:
        until = at + len(piece.ids)
        keys, values = piece.kept.write(module.layer_idx, key[0, :, at:until], value[0, :, at:until])
        seen.append(_see(query[0, :, at:until], keys, values, options.get("scaling"), options.get("sliding_window")))
        at = until
    return torch().cat(seen).unsqueeze(0), None


def _see(query: Tensor, keys: Tensor, values: Tensor, scale: float | None, window: int | None) -> Tensor:
    """Return [ids, heads, width]. Heads that share keys stand beside each other as so many ids: nothing is repeated."""
    heads, count, width = query.shape
    groups, length, _ = keys.shape
    if window is not None and count == 1:
        keys, values, window = keys[:, -window:], values[:, -window:], None
    each = heads // groups
    mask = None if count == 1 else _causal(count, length, window, query.device).repeat(each, 1)
    seen = torch().nn.functional.scaled_dot_product_attention(
        query.reshape(1, groups, each * count, width), keys[None], values[None], attn_mask=mask, scale=scale
    )
    return seen.reshape(heads, count, -1).transpose(0, 1)


def _causal(count: int, length: int, window: int | None, device: Any) -> Tensor:
    """Return which of ``length`` ids each of the last ``count`` sees: [count, length]."""
    here = torch().arange(length, device=device)
    behind = here[length - count :, None] - here[None]
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)
