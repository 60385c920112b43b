"""``orchard gateway --engine vllm`` as a program before the real server: its record is what a forward pass says.

It runs before the tests that change the server's weights.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway_program import ask, gateway
from tests.torch.reference import CLOSE, farthest, plain_logprobs
from tests.vllm.server import VllmServer

from orchard.trajectories import Store, to_samples

pytestmark = pytest.mark.timeout(1500)  # the server's start is in it


def test_a_server_answers_through_the_program_and_two_turns_are_one_sample(
    server: VllmServer, weights: Path, tmp_path: Path
) -> None:
    words = ("--engine", "vllm", "--base-url", server.url, "--model", "smol", "--tokenizer", str(weights), "--training")
    messages: list[Any] = []
    with gateway(tmp_path, *words) as running:
        for question in ("Name a river.", "Where does it end?"):
            messages.append({"role": "user", "content": question})
            body = {"model": "any", "max_tokens": 12, "seed": 3, "top_p": 0.5, "messages": messages}
            messages.append(ask(running.url, running.key, body))
        assert running.end() == 0
    with Store(tmp_path / "store") as store:
        (row,) = store.aborted()
        trajectory = store.session(row.session)
    (sample,) = to_samples(trajectory)
    assert [(call.engine, call.model, call.overridden) for call in trajectory.calls] == [
        ("vllm", "smol", {"top_p": 0.5})
    ] * 2
    told = [0.0, *plain_logprobs(weights, sample.ids)]
    drawn = [at for at, trained in enumerate(sample.mask) if trained]
    assert len(drawn) > 2
    assert farthest([sample.logprobs[at] for at in drawn], [told[at] for at in drawn]) < CLOSE
