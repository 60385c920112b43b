"""The tree: whatever a harness does to its history, the paths reproduce exactly what was served."""

import json
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.gateway.tree import CallTree, tools_digest
from orchard.trajectories import CallRecord, CallTimes
from orchard.trajectories.store import dump, load
from orchard.trajectories.trajectory import Trajectory, join

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Message = dict[str, Any]


class Recorded:
    """A session without a network: places, records, remembers; ``served`` is the truth."""

    def __init__(self) -> None:
        self.tree = CallTree()
        self.lines: list[bytes] = []
        self.served: dict[str, tuple[list[Message], Message | None]] = {}

    def call(self, prompt: list[Message], answer: Message | None, tools: list[Message] | None = None) -> CallRecord:
        number = len(self.lines)
        placed = self.tree.place(prompt, tools_digest(tools or []))
        record = CallRecord(
            id=f"call-{number}", session="se", index=number, dialect="d", model="m", engine="e", answer=answer,
            parent=placed.parent, matched=placed.matched, kept_messages=placed.kept_messages, edits=placed.edits,
            normalised=placed.normalised, messages=placed.messages, times=CallTimes(received=NOW),
            response_id=str(number),
            status="ok" if answer else "aborted",
        )  # fmt: skip
        self.lines.append(dump(record))
        self.tree.add(record.id, placed, answer, tools_digest(tools or []))
        self.served[record.id] = deepcopy((prompt, answer))
        return record

    def trajectory(self) -> Trajectory:
        return join((load(line) for line in self.lines), None, "se")


def text(value: Any) -> str:
    return json.dumps(value)  # the form counts, the order of keys too


def assistant(content: str, calls: int = 0, reasoning: str = "", call_id: str = "c") -> Message:
    message: Message = {"role": "assistant", "content": content or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"{call_id}_{n}", "type": "function", "function": {"name": "f", "arguments": '{"a": 1,  "b": "x"}'}}
            for n in range(calls)
        ]
    return message


def echo(message: Message, style: str) -> Message:
    """The model's own turn as some harness sends it back."""
    message = deepcopy(message)
    if style == "parts" and message.get("content"):
        message["content"] = [{"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}]
    if style == "compact":
        message["content"] = message.get("content") or ""
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    if style == "bare":
        message.pop("reasoning_content", None)
        if message.get("content") is None:
            del message["content"]
    if style == "ids":
        for call in message.get("tool_calls", []):
            call["id"] = call["id"].replace("_", "")
    return message


STYLES = ["raw", "parts", "compact", "bare", "ids"]
LEFT_ASIDE = {
    "raw": [], "parts": ["cache_marks", "content_form"], "compact": ["arguments"], "bare": ["reasoning_dropped"],
    "ids": ["ids"],
}  # fmt: skip
WORDS = st.sampled_from(["", "a", "b", "é \U0001f600"])
STEP = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["extend", "extend", "extend", "fork", "edit", "repeat", "abort", "new"]),
        "which": st.integers(0, 5),
        "at": st.integers(0, 9),
        "word": WORDS,
        "calls": st.integers(0, 2),
        "reasoning": st.sampled_from(["", "r1", "r2"]),
        "style": st.sampled_from(STYLES),
        "tools": st.sampled_from([0, 0, 1]),
    }
)


def answers_to(message: Message, word: str) -> list[Message]:
    """What a harness adds after an answer: tool results (in any order), or a user's word."""
    calls = message.get("tool_calls", [])
    results = [{"role": "tool", "tool_call_id": call["id"], "content": word} for call in reversed(calls)]
    return results or [{"role": "user", "content": word}]


def prompt_of(step: dict[str, Any], histories: list[list[Message]]) -> list[Message]:
    base = deepcopy(histories[step["which"] % len(histories)])
    if step["op"] == "fork":
        base = [*base[: 1 + step["at"] % len(base)], {"role": "user", "content": step["word"]}]
    elif step["op"] == "edit":
        base[step["at"] % len(base)] = {"role": "user", "content": step["word"] + "!"}
    elif step["op"] == "new":
        base = [{"role": "system", "content": step["word"]}, {"role": "user", "content": step["word"]}]
    return base


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=14))
def test_paths_reproduce_what_was_served(steps: list[dict[str, Any]]) -> None:
    session = Recorded()
    histories: list[list[Message]] = [[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]]
    for number, step in enumerate(steps):
        prompt = prompt_of(step, histories)
        answer = assistant(step["word"], step["calls"], step["reasoning"], f"c{number % 3}")
        tools = [{"type": "function", "function": {"name": "f"}}] * step["tools"]
        session.call(prompt, None if step["op"] == "abort" else answer, tools)
        if step["op"] != "abort":
            back = echo(answer, step["style"])
            histories.append([*prompt, back, *answers_to(back, step["word"])])
    trajectory = session.trajectory()
    for call_id, (prompt, answer) in session.served.items():
        assert text(trajectory.prompt(call_id)) == text(prompt)
        assert text(trajectory.messages(call_id)) == text([*prompt, answer] if answer else prompt)
    for call in trajectory.calls:
        if call.matched == "extends":
            assert call.parent is not None
            assert call.kept_messages == len(trajectory.messages(call.parent))
    check_branches(trajectory)


def check_branches(trajectory: Trajectory) -> None:
    branches = trajectory.branches()
    leaves = {branch.leaf.id for branch in branches}
    covered = {call.id for branch in branches for call in branch.calls}
    assert covered == {call.id for call in trajectory.calls if call.status == "ok"}
    for branch in branches:
        assert text(branch.messages) == text(trajectory.messages(branch.leaf.id))
        assert not leaves & {call.id for call in branch.calls[:-1]}
        for call in branch.calls:
            place = len(trajectory.prompt(call.id))
            assert branch.messages[place]["role"] == "assistant"


def test_each_echo_extends_and_costs_only_what_is_new() -> None:
    for style in STYLES:
        session = Recorded()
        history: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        for turn in range(6):
            answer = assistant("think", 2, f"reason {turn}", f"t{turn}")
            record = session.call(history, answer)
            if turn:
                assert (record.matched, record.parent) == ("extends", f"call-{turn - 1}"), style
                assert len(record.messages) == 2
                assert len(record.edits) == (0 if style == "raw" else 1), style
                assert record.normalised == LEFT_ASIDE[style], style
            back = echo(answer, style)
            history = [*history, back, *answers_to(back, f"out {turn}")]
        (branch,) = session.trajectory().branches()
        assert [call.id for call in branch.calls] == [f"call-{n}" for n in range(6)]


def test_what_is_a_fork_and_what_is_a_root() -> None:
    session = Recorded()
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    answer = assistant("one")
    tools = [{"type": "function", "function": {"name": "f"}}]
    session.call([system, user], answer, tools)
    again = session.call([system, user], assistant("two"), tools)
    assert (again.matched, again.parent, again.kept_messages, again.messages) == ("forked", "call-0", 2, [])
    dropped = session.call([system, user, {"role": "user", "content": "bad format"}], answer, tools)
    assert (dropped.matched, dropped.kept_messages) == ("forked", 2)
    side = session.call([{"role": "system", "content": "title"}, user], answer)
    assert (side.matched, side.parent, side.messages[0]["content"]) == ("root", None, "title")
    summary = session.call([system, user, answer, {"role": "user", "content": "sum up"}], answer)
    assert (summary.matched, summary.kept_messages) == ("forked", 3)  # without the tools the prompt is another one
    other = session.call([system, user, assistant("two"), user], answer, tools)
    assert (other.matched, other.parent) == ("extends", "call-1")


def test_equal_answers_are_told_apart_by_their_ids() -> None:
    session = Recorded()
    start = [{"role": "user", "content": "u"}]
    for name in ("first", "second"):
        session.call(start, assistant("", 1, call_id=name))
    for name, parent in (("first", "call-0"), ("second", "call-1")):
        answer = assistant("", 1, call_id=name)
        record = session.call([*start, answer, *answers_to(answer, name)], assistant("end"))
        assert (record.parent, record.edits) == (parent, {})


def test_arguments_that_a_harness_rewrites_are_the_same_by_the_ids_of_the_calls() -> None:
    session, start = Recorded(), [{"role": "user", "content": "u"}]
    answer = assistant("I look.", 2)
    session.call(start, answer)
    back = deepcopy(answer)
    back["tool_calls"][1]["function"]["arguments"] = '{"a": 1, "b": "x", "all": false}'
    history = [*start, back, *answers_to(back, "out")]
    record = session.call(history, assistant("end"))
    assert (record.matched, record.parent, record.edits) == ("extends", "call-0", {1: back})
    assert "arguments_rewritten" in record.normalised
    record = session.call([*history, assistant("end"), {"role": "user", "content": "go on"}], assistant("x"))
    assert (record.matched, record.parent) == ("extends", "call-1")
    for other in ({**back, "content": "I see."}, {**back, "tool_calls": back["tool_calls"][:1]}):
        assert session.call([*start, other], assistant("y")).matched == "forked"
    renamed = deepcopy(back)
    renamed["tool_calls"][0]["id"] = "another"
    assert session.call([*start, renamed], assistant("y")).matched == "forked"
    assert text(session.trajectory().prompt("call-1")) == text(history)


SAID = {"command": "cd /testbed && sh test.sh", "text": "a  \nb\t\n", "all": True, "edits": [{"new": "x "}]}
REWRITTEN: list[Any] = [  # what may come back of it, and what is another answer
    ({"replace": False, "limit": None, "env": {}}, True),
    ({"command": "sh test.sh"}, True),
    ({"text": "a\nb\n", "edits": [{"new": "x"}]}, True),
    ({"command": "sh test.sh", "text": "a\nb\n", "replace": False}, True),
    ({"command": "echo COMPLETELY DIFFERENT"}, False),
    ({"command": "cd /other && sh test.sh"}, False),
    ({"command": "cd /testbed && sh test.sh "}, False),
    ({"text": "a  \nb\t\n\n"}, False),
    ({"all": False}, False),
    ({"all": 1}, False),
    ({"replace": True}, False),
    ({"edits": []}, False),
]


@pytest.mark.parametrize(("change", "same"), REWRITTEN)
def test_only_what_a_harness_is_known_to_rewrite_is_the_same_by_ids(change: dict[str, Any], same: bool) -> None:
    start = [{"role": "user", "content": "u"}]
    answer, back, less = (assistant("I look.", 2, "why") for _ in range(3))
    for form, arguments in ((answer, SAID), (back, {**SAID, **change}), (less, {"command": SAID["command"]})):
        form["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    other = {**back, "reasoning_content": "because"}
    for form, known in ((back, same), (echo(back, "bare"), same), (other, False), (less, False)):
        session = Recorded()
        session.call(start, answer)
        record = session.call([*start, form, *answers_to(form, "out")], assistant("end"))
        assert (record.matched, record.kept_messages) == (("extends", 2) if known else ("forked", 1))
        assert ("arguments_rewritten" in record.normalised) == known


def test_a_command_that_gets_a_folder_to_run_in_is_another_one() -> None:
    session, start = Recorded(), [{"role": "user", "content": "u"}]
    answer = assistant("", 1)
    answer["tool_calls"][0]["function"]["arguments"] = '{"command": "ls"}'
    session.call(start, answer)
    back = deepcopy(answer)
    back["tool_calls"][0]["function"]["arguments"] = '{"command": "cd /etc && ls"}'
    assert session.call([*start, back], assistant("x")).kept_messages == 1


def test_swapped_results_are_another_prompt() -> None:
    session = Recorded()
    answer = assistant("", 2)
    one, two = ({"role": "tool", "tool_call_id": f"c_{n}", "content": "same"} for n in (0, 1))
    session.call([{"role": "user", "content": "u"}], answer)
    session.call([{"role": "user", "content": "u"}, answer, one], assistant("x"))
    record = session.call([{"role": "user", "content": "u"}, answer, two], assistant("y"))
    assert (record.parent, record.messages) == ("call-0", [two])


def test_nothing_in_another_form_of_nothing_is_named() -> None:
    session, start = Recorded(), [{"role": "user", "content": "u"}]
    session.call(start, assistant("", 1))
    back = {**assistant("", 1), "content": "", "refusal": None}
    record = session.call([*start, back, *answers_to(back, "x")], assistant("end"))
    assert (record.matched, record.normalised) == ("extends", ["empty"])
    again = dict(reversed(back.items()))  # the order of keys has no name
    record = session.call([*start, again, *answers_to(back, "x")], assistant("other"))
    assert (record.kept_messages, list(record.edits), record.normalised) == (3, [1], [])


def test_true_is_not_one() -> None:
    session = Recorded()
    session.call([{"role": "user", "content": "u", "flag": 1}], assistant("x"))
    record = session.call([{"role": "user", "content": "u", "flag": True}], assistant("x"))
    assert record.matched == "root"
