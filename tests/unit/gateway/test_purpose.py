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


OPENCODE_TITLE = "You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>\nGenerate …"
PI_COMPACTION = (
    "You are a context summarization assistant. Your task is to read a conversation between a user and an AI assistant,"
    " then produce a structured summary following the exact format specified.\n\nDo NOT continue the conversation."
)
OPENCODE_COMPACTION = (
    "You are a context summarization agent. You are given a conversation between a user and an agent. Your goal is to "
    "produce a structured summary"
)
OPENHANDS_COMPACTION = "You are maintaining a context-aware state summary for an interactive agent.\nYou will be given"
HERMES_COMPACTION = (
    "You are a summarization agent creating a context checkpoint. Treat the conversation turns below as source material"
    " for a compact record of prior work."
)
HERMES_TITLE = (
    "Generate a short, descriptive title (3-7 words) for a conversation that starts with the following exchange. "
    "The title should capture the main topic or intent."
)
CLAUDE_COMPACTION = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed summary"
)
KIMI_COMPACTION = (
    "You are about to run out of context. Create a handoff summary for the\nmodel that will resume this task after the "
    "earlier conversation is cleared."
)


def system(text: str) -> Message:
    return {"role": "system", "content": text}


KNOWN: list[tuple[str, list[Message]]] = [
    ("title", [system(OPENCODE_TITLE), user("Generate a title for this conversation:"), TASK]),
    ("title", [system(HERMES_TITLE), user("User: repair\n\nAssistant: done")]),
    ("title", [system("You are a helpful assistant that generates concise, descriptive titles for conversations with "
                      "OpenHands. Be short."), user("Generate a title")]),
    ("summary", [system("Summarize what was done in this conversation. Write like a pull request description."), TASK]),
    ("compaction", [system(OPENCODE_COMPACTION), user("Here is the conversation so far:")]),
    ("compaction", [system(PI_COMPACTION), user("<conversation>…</conversation>")]),
    ("compaction", [system(OPENHANDS_COMPACTION), user("<EVENT>…</EVENT>\n\nNow summarize the events")]),
]  # fmt: skip
"""Calls beside the work that known harnesses make without tools, before the first turn or later."""
ORDINARY = (
    "Fix the bug: str.title() breaks the page title in render.py.",
    "Generate a title for each page of the blog, and print only the title.",
    "Please summarize our conversation so that another agent can go on.",
    "Write compact(self, history): it makes a compaction of the session when the context window is full.",
    "Create a compaction of this session.",
    "Condense the context: hand-off notes, a checkpoint, and a summary of the conversation so far.",
    "You are a title generator, they say. Continue the work.",
    f"In prompts.py, replace this text: {CLAUDE_COMPACTION}",
    f"In prompts.py, replace this text: {KIMI_COMPACTION}",
    f"The file says: {OPENCODE_TITLE}",
    f"cat compressor.py\n{HERMES_COMPACTION}",
)
"""Tasks and observations that speak of such calls."""


@pytest.mark.parametrize(("purpose", "messages"), KNOWN)
def test_calls_beside_the_work(purpose: str, messages: list[Message]) -> None:
    session = Session()
    assert session.call(messages, said("Repairing add"), []) == purpose  # comes before the first turn
    session.work()
    assert session.call(messages, said("Repairing add"), []) == purpose
    assert session.arrives(messages, TOOLS)[0] in ("agent", "subagent")  # with tools it is one that works


def test_what_no_known_harness_says_is_beside_the_work_if_it_has_no_tools_and_nothing_of_the_work() -> None:
    session = Session()
    session.work()
    assert session.call([user(HERMES_COMPACTION)], said("It was done."), []) == "compaction"
    quick = [user("Is this a new topic?")]
    assert session.call(quick, said("no"), []) == "side"
    assert session.call([*quick, said("no"), user("Sure?")], said("yes"), []) == "side"
    assert session.call([SYSTEM, TASK, user("Name it.")], said("calc"), []) == "side"


@pytest.mark.parametrize("words", ORDINARY)
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no-tools"])
def test_what_a_task_or_an_observation_speaks_of_decides_nothing(words: str, tools: list[Message]) -> None:
    for first, later, observed in ((words, "ok", "user"), ("Do it.", words, "user"), ("Do it.", words, "tool")):
        for instructions in ([SYSTEM], [system(f"You are a coding agent. {words}")], []):
            session, history = Session(), [*instructions, user(first)]
            for _ in range(3):
                call = {"id": f"c{len(history)}", "function": {"name": "bash", "arguments": "{}"}}
                answer: Message = {"role": "assistant", "content": words, "tool_calls": [call]}
                assert session.call(history, answer, tools) == "agent"
                result: Message = {"role": observed, "content": later}
                history += [answer, result | ({"tool_call_id": call["id"]} if observed == "tool" else {})]
            assert session.call(history, said(words), []) == "agent"  # the last turn may have no tools
            assert session.call([*history, said(words), user(later)], said("done"), tools) == "agent"


def test_a_sub_agent_of_another_name_may_have_no_tools() -> None:
    session = Session()
    assert session.call([SYSTEM, TASK], said("ok"), agent="a") == "agent"
    assert session.call([SYSTEM, user("look")], said("ok"), [], agent="b", parent="a") == "subagent"
    assert session.call([SYSTEM, user("look")], said("ok"), agent="c", parent="a") == "subagent"
    assert session.call([user("Which topic?")], said("ok"), [], agent="c", parent="a") == "side"


def test_what_came_before_the_first_tools_is_not_the_main_agent() -> None:
    session = Session()
    assert session.call([user("quota")], said("ok"), []) == "agent"
    main = session.work()
    assert session.arrives(main[:2], TOOLS)[0] == "agent"


def test_a_side_call_is_known_while_the_first_turn_still_runs() -> None:
    session = Session()
    assert session.arrives([SYSTEM, TASK], TOOLS)[0] == "agent"
    assert session.arrives([user("Quick question")], [])[0] == "side"


@pytest.mark.parametrize(
    "words",
    [CLAUDE_COMPACTION, KIMI_COMPACTION],
)
def test_a_compaction_that_carries_the_tools(words: str) -> None:
    session = Session()
    done = [*session.work(), {"role": "tool", "tool_call_id": "c0", "content": "ok"}]
    assert session.call([*done, user(words)], said("<summary>…</summary>")) == "compaction"
    assert session.call(done, said("on")) == "agent"
    shorter = [SYSTEM, user("Earlier turns are left out."), said("ok"), user(words)]
    assert session.call(shorter, said("so far")) == "compaction"
    again = [SYSTEM, user("This session is being continued. Summary: …")]
    assert session.call(again, said("go on")) == "agent"  # the same instructions and tools, and nothing was delegated


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


@pytest.mark.parametrize("asks", [[system(PI_COMPACTION), user("<conversation>…</conversation>")], None])
def test_what_goes_on_from_a_compaction_is_no_sub_agent_though_its_last_call_was_under_way(asks: Any) -> None:
    session = Session()
    path = "/testbed/greet.sh"
    begun = session.work(path)
    done: Message = {"role": "tool", "tool_call_id": "c0", "content": f"Replaced in {path}"}
    if asks is None:  # with its tools, behind the conversation
        assert (
            session.call([*begun, done, user(CLAUDE_COMPACTION)], said(f"The greeting of {path} is mended."))
            == "compaction"
        )
    else:
        assert session.call(asks, said(f"The greeting of {path} is mended."), []) == "compaction"
    told_otherwise = user(f"So far: {path}, which holds a greeting, was mended.")
    assert session.arrives([SYSTEM, told_otherwise, begun[-1], done], TOOLS)[0] == "agent"
    assert session.arrives([SYSTEM, told_otherwise], TOOLS)[0] == "agent"


def test_an_answers_own_words_in_its_results_are_told_to_nobody() -> None:
    session = Session()
    begun = session.work("/testbed/greet.sh")
    done: Message = {"role": "tool", "tool_call_id": "c0", "content": "Replaced in /testbed/greet.sh"}
    assert session.arrives([SYSTEM, user("Go on with it."), begun[-1], done], TOOLS)[0] == "agent"


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
        == "side"
    )
    assert session.arrives([SYSTEM, user("x")], TOOLS, Origin(agent="c"))[0] == "subagent"
