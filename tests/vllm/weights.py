"""Other weights of the same model: whole ones, and an adapter with what it makes of the model."""

import json
import shutil
from pathlib import Path
from typing import Any

from orchard.gateway.engines.transformers_engine import libraries

RANK, ALPHA = 4, 8
_ADAPTED = ("q_proj", "down_proj")


def _safetensors() -> Any:
    return libraries.importlib.import_module("safetensors.torch")


def _copied(folder: Path, to: Path) -> dict[str, Any]:
    shutil.copytree(folder, to)
    return _safetensors().load_file(to / "model.safetensors")


def moved(folder: Path, to: Path) -> Path:
    """Copy a model with other weights in its feed-forward layers. (Tied embeddings do not arrive: docs/engines.md.)"""
    tensors = _copied(folder, to)
    for name in tensors:
        if name.endswith("mlp.down_proj.weight"):
            tensors[name] *= 1.1
    _safetensors().save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def adapted(folder: Path, to: Path) -> tuple[Path, Path]:
    """Make a random adapter; return its folder, and that of the model with the adapter merged into it."""
    torch = libraries.torch()
    torch.manual_seed(0)
    merged = to / "merged"
    tensors, low = _copied(folder, merged), dict[str, Any]()
    for name in [name for name in tensors if name.split(".")[-2] in _ADAPTED]:
        rows, columns = tensors[name].shape
        down, up = torch.randn(RANK, columns) / columns**0.5, torch.randn(rows, RANK) * 0.02
        tensors[name] += up @ down * (ALPHA / RANK)
        module = f"base_model.model.{name.removesuffix('.weight')}"
        low |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    _safetensors().save_file(tensors, merged / "model.safetensors", metadata={"format": "pt"})
    adapter = to / "adapter"
    adapter.mkdir()
    _safetensors().save_file(low, adapter / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "smol", "r": RANK,
        "lora_alpha": ALPHA, "target_modules": list(_ADAPTED), "bias": "none",
    }  # fmt: skip
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    return adapter, merged
