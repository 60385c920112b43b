"""Other people's formats hold what the record holds, and the counts by harness are those of its calls."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import MachineUnfit
from orchard.trajectories import CallRecord, CallTimes, RolloutRecord, Usage
from orchard.trajectories.formats import atif, parquet, samples, whole
from orchard.trajectories.stats import naive, stats
from orchard.trajectories.trajectory import Trajectory, join

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TOOLS = [{"type": "function", "function": {"name": "bash"}}]
ASKED = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
PROMPT = [{"role": "system", "content": "Be good."}, {"role": "user", "content": [{"type": "text", "text": "Mend."}]}]


def call(number: int, **facts: Any) -> CallRecord:
    base: dict[str, Any] = dict(
        id=f"c{number}", session="se", index=number, dialect="d", model="m", engine="e", response_id="r",
        times=CallTimes(received=NOW), usage=Usage(prompt_tokens=10, completion_tokens=2), matched="extends",
        answer={"role": "assistant", "content": str(number)},
    )  # fmt: skip
    return CallRecord.model_validate(base | facts)


@pytest.fixture
def found() -> Trajectory:
    """Two turns of the agent, the first with a tool; a sub-agent beside them; a title."""
    acts = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [ASKED]}
    first = call(
        0, matched="root", messages=PROMPT, tools=TOOLS, tools_hash="h", prompt_ids=[1, 2], sampled_ids=[3],
        logprobs=[-0.5], answer=acts,
    )  # fmt: skip
    result = {"role": "tool", "tool_call_id": "call1", "content": "greet.sh"}  # its id was rewritten by the harness
    second = call(
        1, parent="c0", kept_messages=3, messages=[result], tools_hash="h", kept_ids=3, prompt_ids=[4],
        sampled_ids=[5, 6], logprobs=[-0.1, -0.2],
    )  # fmt: skip
    beside = call(
        2, matched="root", purpose="subagent", messages=[{"role": "user", "content": "sub"}], tools_hash="h",
        prompt_ids=[9], sampled_ids=[8], logprobs=[-1.0],
    )  # fmt: skip
    title = call(3, matched="root", purpose="title", messages=[{"role": "user", "content": "title"}])
    cut = call(4, parent="c1", kept_messages=5, status="aborted", answer=None)
    rollout = RolloutRecord(
        id="ro", run="r", task="t", attempt=2, tries=1, sessions=["se"], harness="codex", harness_version="7",
        policy="p", model="m", started_at=NOW, reward=0.5, stop="submitted",
    )  # fmt: skip
    return join([first, second, beside, title, cut], rollout, "se")


def test_an_atif_document_for_each_conversation(found: Trajectory) -> None:
    main, sub = [json.loads(line) for line in atif.write([found])]
    assert (main["schema_version"], main["session_id"]) == ("ATIF-v1.4", "se-1")
    assert main["agent"] == {"name": "codex", "version": "7", "model_name": "m", "extra": {"tools": TOOLS}}
    system, user, act, end = main["steps"]
    assert [step["step_id"] for step in main["steps"]] == [1, 2, 3, 4]
    assert (system["source"], user["source"], user["message"]) == ("system", "user", "Mend.")
    assert (act["source"], act["message"], act["reasoning_content"]) == ("agent", "", "hm")
    assert act["tool_calls"] == [{"tool_call_id": "call_1", "function_name": "bash", "arguments": {"command": "ls"}}]
    assert act["observation"] == {"results": [{"source_call_id": "call_1", "content": "greet.sh"}]}
    assert act["metrics"]["prompt_token_ids"] == [1, 2]
    assert end["metrics"]["prompt_token_ids"] == [1, 2, 3, 4]
    assert (end["metrics"]["completion_token_ids"], end["metrics"]["logprobs"]) == ([5, 6], [-0.1, -0.2])
    assert main["final_metrics"]["total_completion_tokens"] == 4
    assert main["extra"]["reward"] == 0.5
    assert [step["message"] for step in sub["steps"]] == ["sub", "2"]
    assert len(list(atif.write([found], side_calls=True))) == 3


def test_samples_carry_what_their_rollout_came_to(found: Trajectory) -> None:
    first, second = [json.loads(line) for line in samples.write([found])]
    assert (first["ids"], first["mask"]) == ([1, 2, 3, 4, 5, 6], [False, False, True, False, True, True])
    assert (first["rollout"], first["reward"], first["task"], first["harness"]) == ("ro", 0.5, "t", "codex")
    assert second["ids"] == [9, 8]
    assert json.loads(next(samples.write([join(found.calls, None, "se")])))["session"] == "se"


def test_parquet_is_read_back_by_arrow(found: Trajectory, tmp_path: Path) -> None:
    reader = pytest.importorskip("pyarrow.parquet", reason="pyarrow, the extra `parquet`, is not installed")
    assert parquet.write([found] * 300, tmp_path / "out.parquet") == 600
    rows = reader.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(rows) == 600
    assert (rows[0]["rollout"], rows[0]["attempt"], rows[0]["reward"], rows[0]["harness"]) == ("ro", 2, 0.5, "codex")
    assert [message["role"] for message in rows[0]["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert rows[0]["messages"][2]["tool_calls"] == [{"id": "call_1", "name": "bash", "arguments": '{"command": "ls"}'}]
    assert rows[0]["messages"][2]["reasoning"] == "hm"
    assert json.loads(rows[0]["tools"]) == TOOLS
    assert rows[1]["purpose"] == "subagent"


def test_parquet_without_arrow_says_what_to_install(
    found: Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(parquet.importlib, "import_module", missing)
    with pytest.raises(MachineUnfit, match="pyarrow") as refused:
        parquet.write([found], tmp_path / "out.parquet")
    assert "orchard-env[parquet]" in str(refused.value)
    assert not (tmp_path / "out.parquet").exists()


def test_our_own_form_holds_everything(found: Trajectory) -> None:
    (line,) = whole.write([found])
    facts = json.loads(line)
    assert [one["id"] for one in facts["calls"]] == ["c0", "c1", "c2", "c3", "c4"]
    assert facts["rollout"]["reward"] == 0.5
    assert [branch["calls"] for branch in facts["branches"]] == [["c0", "c1"], ["c2"], ["c3"]]


def test_counts_by_harness(found: Trajectory) -> None:
    alone = join([call(0, matched="root", messages=PROMPT)], None, "se")
    [unknown, codex] = stats([found, found, alone])
    assert (unknown.harness, unknown.sessions, unknown.rollouts, unknown.samples) == ("-", 1, 0, 0)
    assert (codex.rollouts, codex.calls, codex.failed, codex.conversations, codex.samples) == (2, 8, 2, 6, 4)
    assert codex.forks == {"subagent": 2, "title": 2}
    assert codex.purposes == {"agent": 4, "subagent": 2, "title": 2}
    assert (codex.trained_tokens, codex.sampled_tokens, codex.sample_tokens) == (8, 8, 16)
    assert 0 < codex.stored_bytes < codex.naive_bytes
    lone = naive(found, found.calls[1])
    assert (lone.prompt_ids, lone.messages, lone.tools) == ([1, 2, 3, 4], found.prompt("c1"), TOOLS)
    json.dumps(codex.to_json())
