"""What a gateway recorded, counted, exported and compared by commands: with token ids, of two harnesses."""

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.cli import Done, orchard

from orchard.gateway import Gateway
from orchard.rollout.toy_model import ToyModel, small_tokenizer
from orchard.trajectories import CallRecord, CallTimes, SessionRecord, Store

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}  # fmt: skip
Run = Callable[..., Done]


async def record(folder: Path) -> None:
    """Two sessions of three turns each: one append-only, one whose harness edits what it was told first."""
    with Store(folder) as store:
        async with Gateway(store, {"toy": ToyModel()}) as gateway, aiohttp.ClientSession() as http:
            for harness, edits in (("steady", False), ("editing", True)):
                session = await gateway.open_session({"harness": harness}, model="m")
                messages: list[dict[str, Any]] = [{"role": "user", "content": "Mend it."}]
                for turn in range(3):
                    body = {"model": "m", "messages": messages, "tools": [TOOL]}
                    async with http.post(f"{session.url}/v1/chat/completions", json=body) as got:
                        answer = (await got.json())["choices"][0]["message"]
                    result = {
                        "role": "tool",
                        "tool_call_id": answer["tool_calls"][0]["id"],
                        "content": f"line {turn}\n" * 40,
                    }
                    messages = [*messages, answer, result]
                    if edits:
                        messages[0] = {"role": "user", "content": f"Mend it. ({turn + 1} turns so far)"}
                await session.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store")
    asyncio.run(record(made))
    return made


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    def go(*words: str) -> Done:
        done = orchard(*words, env={"ORCHARD_HOME": str(tmp_path)})
        assert done.returncode == 0, done.stderr.decode()
        return done

    return go


def test_sessions_without_a_rollout_are_listed_and_shown(folder: Path, run: Run) -> None:
    plain = run("trajectories", "ls", "--store", str(folder))
    assert plain.stdout == b""
    assert plain.stderr.startswith(b"2 sessions belong to no rollout")
    listed = json.loads(run("trajectories", "ls", "--sessions", "--store", str(folder), "--json").stdout)
    assert [row["labels"] for row in listed] == [{"harness": "steady"}, {"harness": "editing"}]
    shown = run("trajectories", "show", listed[0]["session"], "--store", str(folder)).stdout.decode()
    assert shown.startswith(f"session   {listed[0]['session']}\nharness   steady\ncalls     3\n")
    assert "── tool\nline 2" not in shown, "the last result was never sent"
    assert "── tool\nline 1" in shown


def test_counts_tell_a_harness_that_edits_its_history_from_one_that_does_not(folder: Path, run: Run) -> None:
    words = ("trajectories", "stats", "--sessions", "--store", str(folder))
    editing, steady = json.loads(run(*words, "--json").stdout)
    assert (steady["calls"], steady["samples"], steady["forks"]) == (3, 1, {})
    assert (editing["calls"], editing["samples"]) == (3, 3)
    assert sum(editing["forks"].values()) == 2
    for one in (steady, editing):
        assert 0 < one["trained_tokens"] == one["sampled_tokens"] < one["sample_tokens"]
    assert steady["stored_bytes"] < 0.8 * steady["naive_bytes"]
    lines = run(*words).stdout.decode().splitlines()
    assert lines[1].split("\t")[:5] == ["steady", "0", "1", "3", "1.00"]


@pytest.mark.parametrize(("name", "count"), [("jsonl", 2), ("openai", 4), ("atif", 4), ("samples", 4)])
def test_exports_in_lines(folder: Path, run: Run, tmp_path: Path, name: str, count: int) -> None:
    output = tmp_path / "out"
    run("trajectories", "export", str(output), "--format", name, "--sessions", "--store", str(folder))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == count
    if name == "atif":
        assert {line["agent"]["name"] for line in lines} == {"steady", "editing"}


def test_an_export_as_parquet_and_one_in_no_format(folder: Path, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow, the extra `parquet`, is not installed")
    output = tmp_path / "out.parquet"
    done = run("trajectories", "export", str(output), "--format", "parquet", "--sessions", "--store", str(folder))
    assert done.stderr.startswith(b"4 conversations")
    assert output.read_bytes()[:4] == b"PAR1"
    refused = orchard("trajectories", "export", str(output), "--format", "yaml", "--store", str(folder), env={})
    assert refused.returncode == 2
    assert b"parquet" in refused.stderr


ODD: list[dict[str, Any]] = [
    {"role": "user", "content": [5, {"text": 5}]},
    {"role": "assistant", "content": {"a": 1}, "tool_calls": [1, {"function": "ls"}]},
    {"role": "tool", "tool_call_id": 5, "content": 5},
]


@pytest.mark.parametrize("name", ["jsonl", "openai", "atif", "samples", "parquet"])
def test_one_odd_record_costs_no_other(folder: Path, tmp_path: Path, name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow, the extra `parquet`, is not installed")
    store = tmp_path / "store"
    shutil.copytree(folder, store)
    asyncio.run(record_odd(store))
    words = ("trajectories", "export", str(tmp_path / "out"), "--format", name, "--sessions", "--store", str(store))
    done = orchard(*words, env={"ORCHARD_HOME": str(tmp_path)})
    told = done.stderr.decode().splitlines()
    if name in ("atif", "parquet"):
        assert done.returncode == 1
        assert told[0].startswith("error: se-odd cannot be written: ")
        assert told[1].startswith("4 conversations")
        assert told[2].startswith("1 left out")
    else:
        assert (done.returncode, len(told)) == (0, 1), done.stderr
    shown = orchard("trajectories", "show", "se-odd", "--store", str(store), env={"ORCHARD_HOME": str(tmp_path)})
    assert (shown.returncode, b"\xe2\x94\x80 assistant" in shown.stdout) == (0, True), shown.stderr


async def record_odd(folder: Path) -> None:
    """Record a session as an older gateway took it: of a harness that sent what is no conversation."""
    with Store(folder) as store:
        now = datetime.now(UTC)
        await store.append(SessionRecord(session="se-odd", at=now, labels={}, budget={}, engine="toy", model="m"))
        await store.append(
            CallRecord(
                id="call-odd", session="se-odd", index=0, dialect="openai.chat", streamed=False, response_id="r",
                matched="root", purpose="agent", engine="toy", model="m", messages=ODD, sampling={},
                answer={"role": "assistant", "content": "ok"}, finish_reason="stop", times=CallTimes(received=now),
            )
        )  # fmt: skip


def test_parity_of_served_prompts(folder: Path, run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    small_tokenizer().save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    editing, steady = json.loads(run("gateway", "parity", str(folder), "--tokenizer", str(model), "--json").stdout)
    assert (steady["harness"], steady["calls"]) == ("steady", 3)
    assert steady["served"] == steady["stock"] > 0
    assert [one["differing"] for one in (steady, editing)] == [0, 0], "nothing here is spelt otherwise"
