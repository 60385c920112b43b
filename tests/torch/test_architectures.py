"""Architectures other than Llama: each equals the library's own attention, or is refused by name."""

from pathlib import Path
from typing import Any

import pytest
from tests.torch.conftest import MakeEngine
from tests.torch.reference import CLOSE, ask_all, off_by, some_ids

from orchard.core.errors import Unsupported
from orchard.gateway.engines.transformers_engine import libraries

SMALL: dict[str, Any] = {
    "vocab_size": 260, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.2,
    "eos_token_id": 257, "bos_token_id": 256, "pad_token_id": 257,
}  # fmt: skip
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW = {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2}


def made(folder: Path, config: str, **options: Any) -> Path:
    transformers = libraries.transformers()
    libraries.torch().manual_seed(0)
    net = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**{**SMALL, **options}))
    net.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("Qwen2Config", {}),
        ("Qwen3Config", {}),
        ("Qwen3Config", {"use_sliding_window": True, **WINDOW}),
        ("MistralConfig", {"sliding_window": 8}),
        ("Qwen3MoeConfig", MOE),
    ],
)
async def test_it_is_the_librarys_own(
    tmp_path: Path, make_engine: MakeEngine, config: str, options: dict[str, Any]
) -> None:
    folder = made(tmp_path, config, **options)
    for said in await ask_all(make_engine(folder), [some_ids(10 + 30 * at, seed=at) for at in range(4)]):
        assert off_by(folder, said) < CLOSE


@pytest.mark.parametrize(
    ("config", "options", "says"),
    [
        ("Gemma2Config", {}, "softcap"),
        ("MambaConfig", {"state_size": 8}, "Mamba"),
        ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
async def test_it_is_refused_by_name(
    tmp_path: Path, make_engine: MakeEngine, config: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(Unsupported, match=says):
        await make_engine(made(tmp_path, config, **options)).ready()
