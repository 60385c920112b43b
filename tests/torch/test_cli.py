"""``orchard gateway --engine transformers`` as a program: a model in it answers, and what cannot be loaded is told."""

import shutil
from pathlib import Path

import pytest
from tests.support.cli import orchard
from tests.support.gateway_program import ASK, ask, gateway
from tests.torch.reference import CLOSE, farthest, plain_logprobs

from orchard.trajectories import Store, to_samples


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_of_the_program_answers_and_is_recorded_in_ids(tiny: Path, tmp_path: Path, dtype: str) -> None:
    words = ("--engine", "transformers", "--model", str(tiny), "--device", "cpu", "--dtype", dtype, "--training")
    with gateway(tmp_path, *words) as running:
        said = [ask(running.url, running.key, {**ASK, "max_tokens": 12, "seed": 3}) for _ in range(2)]
        assert running.end() == 0
    assert said[0] == said[1]
    with Store(tmp_path / "store") as store:
        (row,) = store.aborted()
        samples = to_samples(store.session(row.session))
    assert [sum(sample.mask) > 0 for sample in samples] == [True, True]
    for sample in samples:
        told = [0.0, *plain_logprobs(tiny, sample.ids)]
        drawn = [at for at, trained in enumerate(sample.mask) if trained]
        off = farthest([sample.logprobs[at] for at in drawn], [told[at] for at in drawn])
        assert (off < CLOSE) is (dtype == "float32")  # the reference computes in float32


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "nowhere"], "no device 'nowhere' here"),
        (["--device", "cuda:97"], "no device 'cuda:97' here"),
        (["--dtype", "int8"], "dtype must be float32, bfloat16, float16, not 'int8'"),
    ],
)
def test_what_the_machine_has_not_is_told_before_anything_is_served(
    tiny: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    env = {"ORCHARD_HOME": str(tmp_path / "home")}
    done = orchard("gateway", "--port", "0", "--engine", "transformers", "--model", str(tiny), *words, env=env)
    assert (done.returncode, done.stdout) == (2, b"")
    assert told in done.stderr.decode()


def test_a_folder_without_weights_is_told_before_anything_is_served(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    words = ("gateway", "--port", "0", "--engine", "transformers", "--model", str(tmp_path / "empty"))
    done = orchard(*words, env={"ORCHARD_HOME": str(tmp_path / "home")})
    assert (done.returncode, done.stdout) == (2, b"")
    assert "no model can be loaded from" in done.stderr.decode()
