"""The embedded engine: tokens a second of one processor, one session and sixteen at once, real small weights.

Everything runs in one process of its own on one thread, in turns, with fresh prompts of equal length. The figures are
tokens by second of processor time, prompts included. Peers: transformers' ``generate`` on a static batch, whose answers
begin and end together, and transformers' own continuous batching.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.models import ROOT, smollm2_folder, torch_python

from bench.frame import Row, Target, p50
from bench.place import Place
from orchard.core.config import base_env
from orchard.gateway.engines.transformers import TransformersEngine
from orchard.gateway.engines.transformers_engine import libraries
from orchard.gateway.tokens import Sampling, TokenRequest, Tokens

SHARE = Target(0.8, at_most=False)
PROMPT, ANSWER = 64, 48
Prompts = list[list[int]]


def prompts(count: int, chance: random.Random) -> Prompts:
    return [[chance.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(count)]


async def sampled(engine: TransformersEngine, ids: Sequence[int], answer: int) -> int:
    request = TokenRequest(f"{ids[:8]}", ids, Sampling(max_tokens=answer))
    return sum([len(part.ids) async for part in engine.generate(request) if isinstance(part, Tokens)])


def peers(folder: Path, answer: int) -> dict[str, Callable[[Prompts], int]]:
    torch, transformers = libraries.torch(), libraries.transformers()
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    how = transformers.GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=answer, min_new_tokens=answer, pad_token_id=2
    )
    batching = transformers.generation.ContinuousBatchingConfig(
        return_logprobs=True, num_blocks=512, max_batch_tokens=512
    )

    def generate(asked: Prompts) -> int:
        ids = torch.tensor(asked)
        with torch.inference_mode():
            made = net.generate(ids, attention_mask=torch.ones_like(ids), generation_config=how)
        return int(made.numel() - ids.numel())

    def continuous(asked: Prompts) -> int:
        made = net.generate_batch(asked, generation_config=how, continuous_batching_config=batching, progress_bar=False)
        net.set_attn_implementation("sdpa")
        return sum(len(each.generated_tokens) for each in made.values())

    return {"transformers generate, static batch": generate, "transformers continuous batching": continuous}


async def contest(folder: Path, rounds: int, answer: int) -> dict[str, dict[str, list[float]]]:
    libraries.torch().set_num_threads(1)
    engine, others = TransformersEngine(folder), peers(folder, answer)
    await engine.ready()
    chance, found = random.Random(7), dict[str, dict[str, list[float]]]()
    for sessions in (1, 16):
        speeds = found.setdefault(str(sessions), {})
        for turn in range(rounds + 1):  # the first warms up
            for name in ("orchard", *others):
                asked, start = prompts(sessions, chance), time.process_time()
                if name == "orchard":
                    count = sum(await asyncio.gather(*(sampled(engine, ids, answer) for ids in asked)))
                else:
                    count = others[name](asked)
                if turn:
                    speeds.setdefault(name, []).append(count / (time.process_time() - start))
    await engine.close()
    return found


async def measure(place: Place) -> list[Row]:
    rounds, answer = (1, 4) if place.quick else (3, ANSWER)
    found = await asyncio.to_thread(child, rounds, answer)
    rows: list[Row] = []
    for sessions, speeds in found.items():
        middle = {name: p50(each) for name, each in speeds.items()}
        ours, words = middle.pop("orchard"), "1 session" if sessions == "1" else f"{sessions} sessions at once"
        rows.append(Row(f"embedded engine, {words}", ours, "tokens/CPU-s", rounds, peers=middle))
        share = ours / next(iter(middle.values()))
        rows.append(Row(f"embedded engine, {words}, of a static batch's speed", share, "", rounds, SHARE))
    return rows


def child(rounds: int, answer: int) -> dict[str, Any]:
    env = {**base_env(), "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    argv = [torch_python(), "-m", "bench.transformers_engine", smollm2_folder(), str(rounds), str(answer)]
    told = subprocess.run(argv, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True, timeout=3600)
    return json.loads(told.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(asyncio.run(contest(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))))
