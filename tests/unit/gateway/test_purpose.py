"""What a call is for, where an agent goes on from a summary of its own conversation."""

from typing import Any

import pytest

from orchard.gateway.dialects.base import ModelRequest, Origin
from orchard.gateway.purpose import Purposes
from orchard.gateway.tree import CallTree, tools_digest

TOOLS = [{"type": "function", "function": {"name": "edit"}}]
SYSTEM = {"role": "system", "content": "You mend things."}
TASK = {"role": "user", "content": "Mend the greeting."}
EDIT = {
    "role": "assistant", "content": "I mend it.",
    "tool_calls": [{"id": "c", "function": {"name": "edit", "arguments": '{"path": "/testbed/greeting.sh"}'}}],
}  # fmt: skip
DONE = {"role": "tool", "tool_call_id": "c", "content": "Replaced 1 line of /testbed/greeting.sh."}
SUMMARY = "The greeting was read, and mended in its first line."


class Session:
    def __init__(self) -> None:
        self.tree, self.purposes, self.count = CallTree(), Purposes(), 0

    def call(
        self, messages: list[dict[str, Any]], answer: dict[str, Any], *, tools: bool = True, agent: str | None = None
    ) -> str:
        digest = tools_digest(TOOLS if tools else [])
        placed = self.tree.place(messages, digest)
        asked = ModelRequest("m", messages, TOOLS if tools else [], {}, False, origin=Origin(agent))
        purpose = self.purposes.of(asked, placed, digest)
        self.purposes.note(str(self.count), purpose, answer)
        self.tree.add(str(self.count), placed, answer, digest)
        self.count += 1
        return purpose


@pytest.mark.parametrize("agent", [None, "the-session"])
def test_what_goes_on_after_a_compaction_is_the_agents_work(agent: str | None) -> None:
    session = Session()
    assert session.call([SYSTEM, TASK], EDIT, agent=agent) == "agent"
    wanted = {
        "role": "user",
        "content": "# Conversation\n…\nWrite a summary of this conversation for its continuation.",
    }
    summary = {"role": "assistant", "content": SUMMARY}
    assert session.call([{**SYSTEM, "content": "You compact."}, wanted], summary, tools=False) == "compaction"
    begun = {"role": "user", "content": f"What came before was compacted:\n{SUMMARY if agent is None else '(cut)'}"}
    assert session.call([SYSTEM, begun, EDIT, DONE], {"role": "assistant", "content": "So."}, agent=agent) == "agent"


def test_what_a_tool_call_told_begins_a_sub_agent() -> None:
    session = Session()
    session.call([SYSTEM, TASK], EDIT)
    told = {"role": "user", "content": "Look into /testbed/greeting.sh."}
    assert session.call([SYSTEM, told], {"role": "assistant", "content": "It is short."}) == "subagent"
