"""A causal language model of transformers, run on ragged batches; its weights can be replaced in place."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from orchard.core.errors import InvalidArgument, Unsupported
from orchard.gateway.engines.transformers_engine import attention
from orchard.gateway.engines.transformers_engine.attention import Piece
from orchard.gateway.engines.transformers_engine.libraries import Tensor, torch, transformers
from orchard.gateway.engines.transformers_engine.memory import Kept
from orchard.gateway.errors import EngineRefused

_TYPES = ("float32", "bfloat16", "float16")
_PROBE = (5, 3)
"""Lengths of the two pieces by which a loaded model is tried."""
_ALIKE = 1e-3
"""Share of the largest logit by which float32 may differ between two ways of attention; others four tenths of it."""


class Model:
    """The model in a folder.

    Args:
        folder: ``config.json`` and weights, as transformers saves them.
        device: ``cpu``, ``cuda`` ….
        dtype: ``float32``, ``bfloat16`` …; None: float32 on a CPU, else bfloat16.

    Raises:
        InvalidArgument: there is no model in the folder, no such device here, or no such type.
        Unsupported: its architecture needs what ``attention`` does not do.
    """

    def __init__(self, folder: Path, device: str, dtype: str | None) -> None:
        attention.register()
        self._dtype = _placed(device, dtype)
        try:
            self._net = _loaded(folder, self._dtype, attn_implementation=attention.NAME).to(device).eval()
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"no model can be loaded from {folder}: {error}", field="folder") from error
        _check(self._net.config)
        self._device = device
        self.vocabulary: int = self._net.get_input_embeddings().weight.shape[0]
        self.ends = frozenset(_ends(self._net.generation_config))
        """Ids at which the model ends its answers."""
        self.bytes_each = self._probe()
        """Bytes that an id takes in memory."""

    def forward(self, pieces: Sequence[Piece], last: Sequence[int]) -> Tensor:
        """Run the pieces, which keep their ids' keys and values; return logits, float32, after the ids at ``last``.

        Args:
            pieces: their conversations have room.
            last: places in the row that the pieces make.
        """
        t = torch()
        ids = [each for piece in pieces for each in piece.ids]
        places = [piece.start + at for piece in pieces for at in range(len(piece.ids))]
        with t.inference_mode():
            logits = self._net(
                input_ids=t.tensor([ids], device=self._device),
                position_ids=t.tensor([places], device=self._device),
                logits_to_keep=t.tensor(last, dtype=t.int64, device=self._device),
                use_cache=False,
                pieces=pieces,
            ).logits[0]
        for piece in pieces:
            piece.kept.ids.extend(piece.ids)
        return logits.float()

    def read(self, folder: Path) -> dict[str, Tensor]:
        """Return the weights in a folder, on the CPU. May run in any thread, beside ``forward``.

        Raises:
            EngineRefused: they are not weights of this model.
        """
        try:
            net, told = _loaded(folder, self._dtype, config=self._net.config, output_loading_info=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineRefused(f"{folder} holds no weights of this model: {error}") from error
        wrong = {name: sorted(map(str, told[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        for name, keys in wrong.items():
            if keys:
                raise EngineRefused(f"{folder} holds no weights of this model: {name} {', '.join(keys[:3])} …")
        return cast("dict[str, Tensor]", net.state_dict())

    def replace(self, weights: dict[str, Tensor]) -> None:
        """Sample with these from now on; what was kept before is of no use any more."""
        self._net.load_state_dict(weights)

    def _probe(self) -> int:
        """Compare with the library's own attention, and measure what an id takes in memory."""
        t = torch()
        ids = [each % self.vocabulary for each in range(1, sum(_PROBE) + 1)]
        kept = Kept("")
        kept.resize(len(ids))
        try:
            self.forward([Piece(kept, ids[: _PROBE[0]])], [_PROBE[0] - 1])
            ours = self.forward([Piece(kept, ids[_PROBE[0] :])], [_PROBE[1] - 1])[0]
            self._net.set_attn_implementation("sdpa")
            with t.inference_mode():
                theirs = (
                    self._net(input_ids=t.tensor([ids], device=self._device), use_cache=False).logits[0, -1].float()
                )
        except (TypeError, ValueError) as error:
            raise Unsupported(f"the embedded engine cannot run {type(self._net).__name__}: {error}") from error
        finally:
            self._net.set_attn_implementation(attention.NAME)
        most = _ALIKE if self._dtype == "float32" else 40 * _ALIKE
        if not bool((ours - theirs).abs().max() <= most * theirs.abs().max()):
            raise Unsupported(
                f"the embedded engine computes {type(self._net).__name__} otherwise than its library does"
            )
        return kept.bytes_each()


def context_of(folder: Path) -> int | None:
    """Return the most ids that the model in a folder takes, as its ``config.json`` says.

    Raises:
        InvalidArgument: there is no model in the folder.
    """
    try:
        facts = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"no model in {folder}: {error}", field="folder") from error
    return cast("int | None", facts.get("max_position_embeddings"))


def _placed(device: str, dtype: str | None) -> str:
    """Return the type of a model's weights on a device, once both are known to be there."""
    t = torch()
    try:
        on_cpu = t.device(device).type == "cpu"
        t.zeros(1, device=device).item()
    except (AssertionError, RuntimeError) as error:  # what a build without that kind says, and one with none
        words = str(error).strip().split("\n")[0]
        hint = "cpu, or cuda (cuda:1 …) where torch sees a GPU"
        raise InvalidArgument(f"torch has no device {device!r} here: {words}", field="device", hint=hint) from error
    chosen = dtype or ("float32" if on_cpu else "bfloat16")
    if chosen not in _TYPES:
        raise InvalidArgument(f"dtype must be {', '.join(_TYPES)}, not {chosen!r}", field="dtype")
    return chosen


def _check(config: Any) -> None:
    """Refuse what ``_probe`` could not see: it is too short for it."""
    facts: dict[str, Any] = config.to_dict()
    kinds = set(facts.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    stretched = {kind for kind in ("dynamic", "longrope") if f'"{kind}"' in json.dumps(facts, default=str)}
    if kinds or stretched:
        what = ", ".join(sorted(kinds | stretched))
        raise Unsupported(f"the embedded engine cannot run {facts.get('model_type')}: {what}")


def _loaded(folder: Path, dtype: str, **options: Any) -> Any:
    with _quiet():
        return transformers().AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, **options
        )


@contextmanager
def _quiet() -> Generator[None]:
    """Keep the library's progress bars off this process's terminal."""
    bars = transformers().utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _ends(config: Any) -> list[int]:
    ids = config.eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or [])
