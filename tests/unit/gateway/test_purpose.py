"""Purposes of calls, as real harnesses were seen to make them."""

import json
from typing import Any

import pytest

from orchard.gateway.dialects.base import ModelRequest, Origin
from orchard.gateway.purpose import Purposes
from orchard.gateway.tree import CallTree, tools_digest

Message = dict[str, Any]
SYSTEM: Message = {"role": "system", "content": "You are a coding agent."}
TASK: Message = {"role": "user", "content": "Repair add() in calc.py."}
TOOLS: list[Message] = [{"type": "function", "function": {"name": name}} for name in ("bash", "agent")]


class Session:
    """Places and names calls as a session does."""

    def __init__(self) -> None:
        self.tree, self.purposes, self.count = CallTree(), Purposes(), 0

    def arrives(self, messages: list[Message], tools: list[Message], origin: Origin | None = None) -> Any:
        asked = ModelRequest("m", messages, tools, {}, stream=False, origin=origin or Origin())
        placed = self.tree.place(messages, tools_digest(tools))
        return self.purposes.of(asked, placed, tools_digest(tools)), placed, tools_digest(tools)

    def call(self, messages: list[Message], answer: Message, tools: list[Message] = TOOLS, **origin: str) -> str:
        purpose, placed, tools_hash = self.arrives(messages, tools, Origin(**origin))
        self.tree.add(f"call-{self.count}", placed, answer, tools_hash)
        self.purposes.note(f"call-{self.count}", purpose, answer)
        self.count += 1
        return purpose

    def work(self, *told: str) -> list[Message]:
        """One turn of the main agent, which calls ``agent`` with each of ``told``; its results are due."""
        calls = [
            {"id": f"c{at}", "function": {"name": "agent", "arguments": json.dumps({"prompt": text, "kind": "x"})}}
            for at, text in enumerate(told or ("just look",))
        ]
        answer: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        assert self.call([SYSTEM, TASK], answer) == "agent"
        return [SYSTEM, TASK, answer]


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_a_loop_without_tools_is_an_agent() -> None:
    session = Session()
    assert session.call([SYSTEM, TASK], said("```ls```"), []) == "agent"
    assert session.call([SYSTEM, TASK, said("```ls```"), user("calc.py")], said("done"), []) == "agent"


def test_calls_beside_the_work() -> None:
    session = Session()
    titles = [{"role": "system", "content": "You are a title generator."}, user("Generate a title:"), TASK]
    assert session.call(titles, said("Repairing add"), []) == "title"  # comes before the first turn
    session.work()
    assert session.call(titles, said("Repairing add"), []) == "title"
    words = [{"role": "system", "content": "Summarize what was done."}, user("…")]
    assert session.call(words, said("It was done."), []) == "summary"
    handoff = [{"role": "system", "content": "You condense the context of an agent."}, user("<events>…</events>")]
    assert session.call(handoff, said("So far …"), []) == "compaction"
    assert session.call([user("Is this a new topic?")], said("no"), []) == "side"


def test_a_side_call_is_known_while_the_first_turn_still_runs() -> None:
    session = Session()
    assert session.arrives([SYSTEM, TASK], TOOLS)[0] == "agent"
    assert session.arrives([user("Quick question")], [])[0] == "side"


@pytest.mark.parametrize(
    "words",
    [
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
        "Please summarize our conversation so that another agent can go on.",
        "Create a compaction of this session.",
    ],
)
def test_a_compaction_that_carries_the_tools(words: str) -> None:
    session = Session()
    done = [*session.work(), {"role": "tool", "tool_call_id": "c0", "content": "ok"}]
    assert session.call([*done, user(words)], said("<summary>…</summary>")) == "compaction"
    assert session.call(done, said("on")) == "agent"
    again = [SYSTEM, user("This session is being continued. Summary: …")]
    assert session.call(again, said("go on")) == "agent"  # the same instructions and tools, and nothing was delegated


def test_a_task_that_speaks_of_summaries_is_no_compaction() -> None:
    session = Session()
    task = user("Summarize the conversation module: write docs for compact() in the session package.")
    assert session.call([SYSTEM, task], said("ok")) == "agent"


def test_sub_agents_at_once_that_no_header_tells() -> None:
    session = Session()
    one, two = "Find where add is defined, please.", "Run the tests and tell me what fails."
    main = session.work(one, two)
    first, second = [SYSTEM, user(one)], [SYSTEM, user(f"Context: a toy.\n{two}")]
    assert [session.arrives(prompt, TOOLS)[0] for prompt in (first, second)] == ["subagent", "subagent"]
    assert session.call(first, said("calc.py")) == "subagent"
    assert session.call([*first, said("calc.py"), user("more")], said("done")) == "subagent"
    results = [{"role": "tool", "tool_call_id": f"c{at}", "content": "done"} for at in range(2)]
    assert session.call([*main, *results], said("good")) == "agent"
    assert session.arrives([SYSTEM, user(f"Earlier I was told: {one}")], TOOLS)[0] == "agent"  # its results are served


def test_other_instructions_or_tools_make_another_agent() -> None:
    session = Session()
    session.work()
    assert session.arrives([{"role": "system", "content": "You explore."}, user("x")], TOOLS)[0] == "subagent"
    assert session.arrives([SYSTEM, user("x")], TOOLS[:1])[0] == "subagent"
    assert session.arrives([SYSTEM, user("[Queued user message] Repair add()")], TOOLS)[0] == "agent"


def test_headers_say_more_than_words() -> None:
    session = Session()
    main = session.call([SYSTEM, TASK], said("ok"), agent="a")
    child = session.call([SYSTEM, user("look")], said("ok"), agent="b", parent="a", kind="subagent")
    assert (main, child) == ("agent", "subagent")
    assert session.call([SYSTEM, user("look"), said("ok"), user("y")], said("ok"), agent="b", parent="a") == "subagent"
    assert (
        session.call([SYSTEM, TASK, said("ok"), user("Sum up")], said("so"), [], agent="a", kind="compaction")
        == "compaction"
    )
    assert (
        session.call(
            [SYSTEM, user("look"), user("Generate a title")], said("t"), [], agent="b", parent="a", kind="subagent"
        )
        == "title"
    )
    assert session.arrives([SYSTEM, user("x")], TOOLS, Origin(agent="c"))[0] == "subagent"
