"""The toy's scripted model: with each kind of tools it reads, mends, tests and ends by what they take."""

import json
from typing import Any

import pytest

from orchard.harness import check
from orchard.harness.protocol import SUBMIT_MARKER

Properties = dict[str, dict[str, Any]]


def tool(name: str, properties: Properties, required: list[str] | None = None) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required or list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def texts(*names: str) -> Properties:
    return {name: {"type": "string"} for name in names}


BASH = tool("bash", texts("command"))
REPLACE = texts("file_path", "old_string", "new_string") | {"replace_all": {"type": "boolean"}}
OURS = [tool("Bash", texts("command", "description")), tool("Read", texts("file_path")), tool("Edit", REPLACE)]
EDITS: Properties = {"edits": {"type": "array", "items": {"properties": texts("oldText", "newText")}}}
LISTED = [BASH, tool("read", texts("path")), tool("edit", texts("path") | EDITS)]
MODES = {"command": {"enum": ["view", "create", "str_replace"]}}
EDITOR = [tool("terminal", texts("command") | {"security_risk": {"enum": ["LOW", "HIGH"]}}),
          tool("file_editor", MODES | texts("path", "old_str", "new_str"), ["command", "path"]),
          tool("finish", texts("message"))]  # fmt: skip


def played(tools: list[dict[str, Any]], prompt: str = "Mend it.") -> list[tuple[str, dict[str, Any]] | None]:
    """The calls of the whole conversation, None for an answer of words alone."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    calls: list[tuple[str, dict[str, Any]] | None] = []
    for _ in range(4):
        step = check.answer(messages, tools)
        assert step["content"] == check.SAYS[len(calls)]
        [call] = step["calls"] or [None]
        calls.append((call["name"], call["arguments"]) if call else None)
        messages += [{"role": "assistant", "content": step["content"], "tool_calls": step["calls"]}, {"role": "tool"}]
    return calls


PLACE = f"{check.WORKDIR}/{check.FILE}"


def test_a_shell_alone_is_enough_and_the_marker_ends_where_it_is_asked_for() -> None:
    read, mend, test, end = played([BASH], f"end with {SUBMIT_MARKER}")
    commands = [call[1]["command"].removeprefix(f"cd {check.WORKDIR} && ") for call in (read, mend, test, end) if call]
    assert commands[0] == f"cat {check.FILE}"
    assert commands[1] == f"printf '%s\\n' '{check.RIGHT}' > {check.FILE}"
    assert commands[2:] == ["sh test.sh", f"echo {SUBMIT_MARKER}"]


def test_tools_of_its_own_are_used_and_what_they_require_is_filled_in() -> None:
    assert played(OURS) == [
        ("Read", {"file_path": PLACE}),
        ("Edit", {"file_path": PLACE, "old_string": check.WRONG, "new_string": check.RIGHT, "replace_all": False}),
        ("Bash", {"command": f"cd {check.WORKDIR} && sh test.sh", "description": "the toy repair"}),
        None,
    ]  # fmt: skip


def test_an_editor_that_takes_a_list_and_one_that_takes_a_mode() -> None:
    edit = {"path": PLACE, "edits": [{"oldText": check.WRONG, "newText": check.RIGHT}]}
    assert played(LISTED)[1] == ("edit", edit)
    read, mend, test, end = played(EDITOR)
    assert read == ("file_editor", {"command": "view", "path": PLACE})
    changed = {"command": "str_replace", "path": PLACE, "old_str": check.WRONG, "new_str": check.RIGHT}
    assert mend == ("file_editor", changed)
    assert test == ("terminal", {"command": f"cd {check.WORKDIR} && sh test.sh", "security_risk": "LOW"})
    assert end == ("finish", {"message": check.SAYS[3]})


def test_a_call_without_tools_is_a_title() -> None:
    assert check.answer([{"role": "user", "content": "Title?"}], []) == {"content": check.SIDE}


@pytest.mark.parametrize("name", ["exec_command", "shell"])
def test_a_shell_by_another_name_and_one_that_takes_a_list(name: str) -> None:
    [call] = check.answer([], [tool(name, texts("cmd"))])["calls"]
    assert call["arguments"] == {"cmd": f"cd {check.WORKDIR} && cat {check.FILE}"}
    [call] = check.answer([], [tool(name, {"command": {"type": "array"}})])["calls"]
    assert call["arguments"]["command"][:2] == ["sh", "-c"]
    json.dumps(call)
