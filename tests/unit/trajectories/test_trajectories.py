"""Filters, samples, import and export."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument, NotFound
from orchard.trajectories import CallRecord, CallTimes, Failure, Filter, RolloutRecord, Store, to_samples
from orchard.trajectories.formats import mini_swe_agent, openai_messages
from orchard.trajectories.trajectory import Trajectory, join

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DATA = Path(__file__).parent / "data"


def call(number: int, **facts: Any) -> CallRecord:
    base: dict[str, Any] = dict(
        id=f"c{number}", session="se", index=number, dialect="d", model="m", engine="e", response_id="r",
        times=CallTimes(received=NOW), answer={"role": "assistant", "content": str(number)},
    )  # fmt: skip
    return CallRecord.model_validate(base | facts)


def chain(*calls: CallRecord) -> Trajectory:
    return join(calls, None, "se")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_filters(tmp_path: Path) -> None:
    facts = [
        dict(reward=1.0, stop="submitted", turns=3, labels={"kind": "a"}),
        dict(reward=0.5, stop="turns", turns=50, seconds={"harness": 100.0}),
        dict(reward=None, failure=Failure(seam="grade", reason="x", text="y"), turns=4),
        dict(reward=1.0, stop="time", run="other", turns=9, policy_version="v2"),
    ]
    with Store(tmp_path) as store:
        for number, one in enumerate(facts):
            base: dict[str, Any] = dict(
                id=f"ro-{number}", run="r", task="t", attempt=0, tries=1, sessions=[], harness="h",
                harness_version="1", policy="p", model="m", started_at=NOW,
            )  # fmt: skip
            store.append_now(RolloutRecord.model_validate(base | one))

        def found(**conditions: Any) -> list[str]:
            return [row.id[3:] for row in store.rollouts(*Filter(**conditions).where())]

        assert found() == ["0", "1", "2", "3"]
        assert found(min_reward=0.6) == ["0", "3"]
        assert found(max_reward=0.6) == ["1"]
        assert found(run="r", failed=False) == ["0", "1"]
        assert found(failed=True) == ["2"]
        assert found(stops=("turns", "time")) == ["1", "3"]
        assert found(min_turns=4, max_turns=9) == ["2", "3"]
        assert found(max_seconds=99.0, policy="p", harness="h", task="t") == ["0", "2", "3"]
        assert found(labels={"kind": "a"}) == ["0"]
        assert found(policy_version="v2") == ["3"]


def test_samples_train_a_prefix_once() -> None:
    first = call(0, messages=[user("u")], prompt_ids=[1, 2], sampled_ids=[3], logprobs=[-0.5])
    longer = call(
        1, parent="c0", kept_messages=2, messages=[user("x")], prompt_ids=[1, 2, 3, 4], sampled_ids=[5, 6],
        logprobs=[-0.1, -0.2],
    )  # fmt: skip
    other = call(
        2, parent="c0", kept_messages=2, messages=[user("y")], prompt_ids=[1, 2, 3, 7], sampled_ids=[8], logprobs=[-1.0]
    )
    one, two = to_samples(chain(first, longer, other), weight=2.0)
    assert one.ids == [1, 2, 3, 4, 5, 6]
    assert one.mask == [False, False, True, False, True, True]
    assert one.logprobs == [0.0, 0.0, -0.5, 0.0, -0.1, -0.2]
    assert two.ids == [1, 2, 3, 7, 8]
    assert two.mask == [False, False, False, False, True]
    assert (one.calls, two.calls, two.weight) == (["c0", "c1"], ["c0", "c2"], 2.0)


def test_a_prompt_that_was_rendered_anew_begins_another_sample() -> None:
    first = call(0, messages=[user("u")], prompt_ids=[1, 2], sampled_ids=[3, 4])
    again = call(1, parent="c0", kept_messages=2, prompt_ids=[1, 2, 34, 5], sampled_ids=[6])
    assert [sample.ids for sample in to_samples(chain(first, again))] == [[1, 2, 3, 4], [1, 2, 34, 5, 6]]
    spliced = call(1, parent="c0", kept_messages=2, kept_ids=4, prompt_ids=[5], sampled_ids=[6])
    assert chain(first, spliced).prompt_ids("c1") == [1, 2, 3, 4, 5]
    assert [sample.ids for sample in to_samples(chain(first, spliced))] == [[1, 2, 3, 4, 5, 6]]
    assert to_samples(chain(call(0, messages=[user("u")]))) == []


def test_openai_messages() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    agent = call(0, messages=[user("u")], tools=tools, tools_hash="h")
    more = call(1, parent="c0", kept_messages=2, messages=[user("x")], tools_hash="h")
    side = call(2, messages=[user("title")], purpose="side")
    trajectory = chain(agent, more, side)
    (line,) = openai_messages.write([trajectory])
    assert json.loads(line) == {"messages": [user("u"), agent.answer, user("x"), more.answer], "tools": tools}
    assert len(list(openai_messages.write([trajectory], side_calls=True))) == 2
    with pytest.raises(NotFound):
        trajectory.call("c9")


def test_mini_swe_agents_own_file(tmp_path: Path) -> None:
    data = json.loads((DATA / "mini-swe-agent.traj.json").read_text())
    with Store(tmp_path) as store:
        for record in mini_swe_agent.read(data, run="imported", task="toy", reward=1.0):
            store.append_now(record)
        (row,) = store.rollouts("run = 'imported'")
        trajectory = store.trajectory(row.id)
    assert (row.stop, row.reward, row.turns, row.harness) == ("submitted", 1.0, 5, "mini-swe-agent")
    assert trajectory.rollout is not None
    assert trajectory.rollout.submission == "my answer\n"
    assert [c.matched for c in trajectory.calls] == ["root", "extends", "forked", "extends", "extends"]
    assert [tool.exit_code for tool in trajectory.rollout.tools][:4] == [0, 0, 0, 1]
    assert trajectory.rollout.tools[1].arguments == {"command": "echo two"}
    broken = trajectory.calls[1]  # the reply without a tool call, which the harness leaves out of its history
    assert broken.answer is not None
    assert broken.answer["content"] == "no tool call here"
    main = trajectory.branches()[-1]
    assert [c.index for c in main.calls] == [0, 2, 3, 4]
    shown = [{k: v for k, v in m.items() if k != "extra"} for m in data["messages"] if m["role"] != "exit"]
    last = max(n for n, message in enumerate(shown) if message["role"] == "assistant")
    assert main.messages == shown[: last + 1]
    assert trajectory.usage.prompt_tokens > 0
    with pytest.raises(InvalidArgument):
        list(mini_swe_agent.read({"messages": []}, run="r", task="t"))
