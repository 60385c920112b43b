"""``orchard eval`` as its users run it: a real task, a model server, numbers and page."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_server import SUBMIT, ModelServer, say

from orchard.evals.views import view
from orchard.rollout.folder import read_run

pytestmark = [pytest.mark.root, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "examples/tasks/slug-keeps-digits"
RUN = "from orchard.cli.main import run; run()"
FIX = "sed -i 's/a-z]/a-z0-9]/' slug.py && python3 -c 'import slug; print(slug.slug(\"Route 66\"))'"


async def orchard(home: Path, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, *words, env={**os.environ, "ORCHARD_HOME": str(home), "THE_KEY": "sk-1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_a_model_is_measured_on_a_task_that_gold_and_noop_prove(
    image_home: Path, debian_image: str, tmp_path: Path
) -> None:
    answers = [say("I mend it.", FIX), say("Done.", SUBMIT), say("Nothing to do.", SUBMIT)]
    async with ModelServer(answers) as server:
        code, output, errors = await orchard(
            image_home, "eval", str(EXAMPLE), "--image", debian_image, "--model", "m-1",
            "--base-url", f"{server.url}/v1",
            "--api-key-env", "THE_KEY", "--sampling", "temperature=0.5", "--attempts", "2", "--at-once", "1",
            "--run", str(tmp_path / "run"), "--json",
        )  # fmt: skip
        assert code == 0, errors
        assert len(server.bodies) == 3
        assert {body["temperature"] for body in server.bodies} == {0.5}
        assert {body["model"] for body in server.bodies} == {"m-1"}
        assert {head["Authorization"] for head in server.headers} == {"Bearer sk-1"}
    report = json.loads(output)
    rows = {row["policy"]: row["metrics"] for row in report["rows"]}
    assert {name: (row["passed"], row["judged"]) for name, row in rows.items()} == {
        "gold": (1, 1), "noop": (0, 1), "m-1": (1, 2)
    }  # fmt: skip
    assert [(one["k"], one["value"]) for one in rows["m-1"]["pass_at"]] == [(1, 0.5), (2, 1.0)]
    assert [(one["k"], one["value"]) for one in rows["m-1"]["pass_hat"]] == [(1, 0.5), (2, 0.0)]
    assert report["verdicts"] == [{"task": "slug-keeps-digits", "ok": True, "reason": ""}]
    page = (tmp_path / "run" / "report.html").read_text()
    assert len(re.findall(r'<details class="rollout"', page)) == 4
    assert "sk-1" not in page + output + errors

    code, output, errors = await orchard(image_home, "report", str(tmp_path / "run"), "--json")
    assert code == 0, errors
    assert json.loads(output)["rows"] == report["rows"]


async def test_for_training_only_what_has_token_ids_is_judged(
    image_home: Path, debian_image: str, tmp_path: Path
) -> None:
    exact: Any = say("Done.", f"{FIX} > said && {SUBMIT}")
    exact["choices"][0] |= {"token_ids": [5], "logprobs": {"content": [{"token": "Done.", "logprob": -0.5}]}}
    words = ["--sampling", "top_p=0.5", "--attempts", "2", "--at-once", "1", "--json", "--training"]
    async with ModelServer([exact | {"prompt_token_ids": [1, 2]}, say("Done.", SUBMIT)]) as server:
        code, output, errors = await orchard(
            image_home, "eval", str(EXAMPLE), "--image", debian_image, "--model", "m-1", *words,
            "--base-url", f"{server.url}/v1", "--run", str(tmp_path / "run"),
        )  # fmt: skip
        assert code == 1, errors
        assert [(body["return_token_ids"], body.get("top_p")) for body in server.bodies] == [(True, None)] * 2
    assert {(one["policy"], one["attempt"]): one["reward"] for one in json.loads(output)["cells"]} == {
        ("gold", 0): 1.0, ("noop", 0): 0.0, ("m-1", 0): 1.0, ("m-1", 1): None
    }  # fmt: skip
    assert "1 of 4 rollouts could not be judged" in errors
    with read_run(tmp_path / "run") as run:
        failures = {(one.policy, one.attempt): one.failure and one.failure.text for one in run.records()}
    assert "gave no token ids" in str(failures.pop(("m-1", 1)))
    assert set(failures.values()) == {None}


async def test_a_task_that_gold_does_not_solve_is_refused_and_given_to_no_model(
    image_home: Path, debian_image: str, tmp_path: Path
) -> None:
    task = tmp_path / "task"
    for source in EXAMPLE.rglob("*"):
        if source.is_file():
            target = task / source.relative_to(EXAMPLE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(
                source.read_bytes().replace(b"a-z0-9]", b"a-z9]") if source.suffix == ".patch" else source.read_bytes()
            )
    async with ModelServer([]) as server:
        code, _, errors = await orchard(
            image_home, "eval", str(task), "--image", debian_image, "--model", "m", "--base-url", f"{server.url}/v1",
            "--run", str(tmp_path / "run"),
        )  # fmt: skip
        assert server.bodies == []
    assert code == 1
    assert "task task is refused: the gold patch scores 0 under bash-loop, not 1: " in errors
    assert re.search(r"not 1: \d of \d+ named tests do not hold, such as \S+::\S+ failed \(", errors), errors


def relative(path: Path) -> str:
    """A path as a user types it, from where he stands."""
    return os.path.relpath(path)


async def test_every_script_does_what_it_says_under_both_harnesses(
    image_home: Path, debian_image: str, tmp_path: Path
) -> None:
    words = [word for name in ("gold", "noop", "script:hardcode") for word in ("--policy", name)]
    here = relative(tmp_path / "run")
    words += ["--harness", "bash-loop", "--harness", "mini-swe-agent", "--run", here, "--json"]
    code, output, errors = await orchard(image_home, "eval", str(EXAMPLE), "--image", debian_image, *words)
    assert code == 0, errors
    report = json.loads(output)
    assert report["surprises"] == []
    assert {(cell["harness"], cell["policy"]): cell["reward"] for cell in report["cells"]} == {
        (harness, policy): float(policy == "gold")
        for harness in ("bash-loop", "mini-swe-agent")
        for policy in ("gold", "noop", "script:hardcode")
    }
    code, output, errors = await orchard(image_home, "eval", str(EXAMPLE), "--image", debian_image, *words)
    assert (code, json.loads(output)["cells"]) == (0, report["cells"]), f"the same again resumes: {errors}"
    with read_run(tmp_path / "run") as run:
        for record in run.records():
            found = run.store.trajectory(record.id)
            asked = [call["function"]["arguments"] for one in found.calls for call in (one.answer or {})["tool_calls"]]
            assert [json.loads(text)["command"] for text in asked] == [
                tool.arguments["command"] for tool in record.tools
            ]
            assert view(found)["commands"] == [], "each command stands under the answer that asked for it"
