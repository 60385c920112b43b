"""Records as a run leaves them, made by hand: what an agent wrote in them is hostile."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchard.trajectories import (
    CallRecord,
    CallTimes,
    Failure,
    RewardRecord,
    RolloutRecord,
    SessionRecord,
    Store,
    ToolRecord,
    Usage,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}} & <!-- \u2028 \x1b[31m"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def hostile() -> str:
    return HOSTILE


@pytest.fixture
def make_record() -> Callable[..., RolloutRecord]:
    def make(reward: float | None = 1.0, *, failure: Failure | None = None, **facts: object) -> RolloutRecord:
        given = {"task": "t-1", "harness": "bash-loop", "policy": "m", "attempt": 0, **facts}
        name = "-".join(str(given[key]) for key in ("task", "harness", "policy", "attempt"))
        base: dict[str, object] = {
            "id": f"ro-{name}".replace(":", "-"), "run": "run-1", "tries": 1, "sessions": [f"se-{name}"],
            "harness_version": "1", "model": "m", "stop": "submitted", "turns": 2, "started_at": START,
            "seconds": {"harness": 1.5, "grade": 2.25}, "reward": reward, "failure": failure,
            "environment": {"image": "debian", "backend": "local", "orchard": "0.1.0"},
        }  # fmt: skip
        return RolloutRecord.model_validate(base | given)

    return make


@pytest.fixture
def rich_store(tmp_path: Path, make_record: Callable[..., RolloutRecord]) -> Store:
    """A store of six rollouts with calls, commands, patches, tests; one could not be judged."""
    store = Store(tmp_path / "store")
    for task in ("left-pad-1.0.0", "right-pad-2.0.0", HOSTILE[:40].replace("/", "")):
        for policy, reward in (("gold", 1.0), ("noop", 0.0), ("script:hardcode", None if "right" in task else 0.0)):
            _append(store, make_record, task, policy, reward)
    return store


def _append(
    store: Store, make_record: Callable[..., RolloutRecord], task: str, policy: str, reward: float | None
) -> None:
    name = f"{task}-bash-loop-{policy}-0"
    session = f"se-{name}"
    store.append_now(SessionRecord(session=session, at=START, labels={"run": "run-1"}))
    commands = ["grep -rn 'pad' . | head", f"echo '{HOSTILE}'", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are careful."}, {"role": "user", "content": f"Fix it. {HOSTILE}"},
        {"role": ["odd"], "content": [{"type": "image_url"}, "x", 5], "tool_calls": ["x", {"function": "y"}, {"z": 1}]},
        {"role": "assistant", "content": {"a": 1}, "tool_calls": 7},
    ]  # fmt: skip
    parent, tools = None, []
    for index, command in enumerate(commands):
        call = {
            "id": f"call_{index}", "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }  # fmt: skip
        answer = {"role": "assistant", "content": f"Step {index}: I look. {HOSTILE}", "tool_calls": [call]}
        at = START + timedelta(seconds=index)
        store.append_now(
            CallRecord(
                id=f"{session}-c{index}", session=session, index=index, parent=parent, dialect="chat", model="m",
                matched="extends" if parent else "root", kept_messages=index * 2 + 1 if parent else 0,
                engine="script", messages=messages, answer=answer, finish_reason="tool_calls",
                usage=Usage(prompt_tokens=100 * index, completion_tokens=20), response_id=f"chatcmpl-{name}-{index}",
                times=CallTimes(received=at, engine_start=at, engine_end=at + timedelta(milliseconds=420)),
            )
        )  # fmt: skip
        parent = f"{session}-c{index}"
        output = f"{HOSTILE}\n" + "line\n" * 5
        messages = [{"role": "tool", "tool_call_id": f"call_{index}", "content": output}]
        tools.append(
            ToolRecord(
                call_id=f"chatcmpl-{name}-{index}", name="bash", arguments={"command": command}, output=output,
                exit_code=index, seconds=0.0123,
            )
        )  # fmt: skip
    tests = [
        {"id": f"tests/test_pad.py::test_{n}[{HOSTILE}]", "group": "fail_to_pass" if n < 2 else "pass_to_pass",
         "status": "passed" if reward or n > 1 else "failed", "ok": bool(reward) or n > 1, "seconds": 0.01 * n,
         "message": f"assert 1 == 2\n{HOSTILE}"}
        for n in range(8)
    ]  # fmt: skip
    patch = (
        "diff --git a/pad.py b/pad.py\nindex 1..2 100644\n--- a/pad.py\n+++ b/pad.py\n@@ -1,3 +1,3 @@\n def pad(s):\n"
        f"-    return s\n+    return ' ' + s  # {HOSTILE}\n"
    )
    graded = RewardRecord(grader="tests", score=reward, missing=None if reward is not None else "the machine was full",
                          evidence={"tests": tests, "log": f"8 tests\n{HOSTILE}", "changed": ["pad.py"]})  # fmt: skip
    store.append_now(
        make_record(
            reward, task=task, policy=policy, instruction=f"Padding is wrong.\n{HOSTILE}", tools=tools,
            patch=patch if policy != "noop" else "", rewards=[graded], submission=HOSTILE,
            failure=Failure(seam="grade", reason="missing", text=HOSTILE) if reward is None else None,
            labels={"expect": "pass" if policy == "gold" else "fail"},
        )
    )  # fmt: skip
