"""Programs inside the sandbox: in each dialect they speak, with what their options ask for, ended by their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.harness.conftest import Play

from orchard.harness import check as toy
from orchard.rollout.toy_model import ToyModel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

QUICK = ("claude-code", "codex", "pi")
"""Those that are at work within seconds, on a busy machine too."""
DIALECTS = {"chat": "openai.chat", "responses": "openai.responses", "anthropic": "anthropic.messages"}


@pytest.mark.parametrize(
    ("harness", "dialect"),
    [(name, dialect) for name in ("opencode", "pi") for dialect in ("responses", "anthropic")],
    indirect=["harness"],
)
async def test_it_speaks_the_dialect_it_is_told_to(harness: str, dialect: str, play: Play) -> None:
    ran = await play(harness, config={"dialect": dialect})
    assert ran.report.ok, ran.told()
    assert {call.dialect for call in ran.found.calls} == {DIALECTS[dialect]}


@pytest.mark.parametrize("harness", ["claude-code"], indirect=True)
async def test_claude_code_bare_has_three_tools(harness: str, play: Play) -> None:
    ran = await play(harness, config={"bare": True})
    assert ran.report.ok, ran.told()
    tools = ran.found.tools(ran.found.calls[0].id)
    assert sorted(tool["function"]["name"] for tool in tools) == ["Bash", "Edit", "Read"]


def searching(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Search before the toy is mended."""
    words = ({"name": "grep", "arguments": {"pattern": "Helo"}}, {"name": "glob", "arguments": {"pattern": "*.sh"}})
    step = toy.acted(messages)
    return {"content": "I search.", "calls": [words[step]]} if tools and step < 2 else {"content": "Found."}


@pytest.mark.parametrize("harness", ["opencode"], indirect=True)
async def test_opencode_searches_with_what_its_layer_holds(harness: str, play: Play) -> None:
    ran = await play(harness, engine=ToyModel(searching))
    found, listed = ran.record.tools
    assert (found.error, listed.error) == (None, None), ran.record.tools
    assert toy.WRONG in found.output
    assert sorted(listed.output.split()) == [f"{toy.WORKDIR}/{name}" for name in (toy.FILE, "test.sh")]


def trespassing(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Read outside the work tree, read a .env, do the same again and again, then mend the toy."""
    commands = ["echo SECRET=1 > .env; ls /etc; mktemp -d; cat /proc/version", *["cat /etc/passwd"] * 4, "cat .env"]
    step = toy.acted(messages)
    if tools and step < len(commands):
        return {"content": f"Step {step}.", "calls": [toy.shell_call(tools, commands[step])]}
    if tools and step == len(commands):
        return {"content": "I read it.", "calls": [{"name": "read", "arguments": {"filePath": f"{toy.WORKDIR}/.env"}}]}
    done = [message for message in messages if message.get("role") != "assistant" or not _before(message)]
    return toy.answer(done, tools)


def _before(message: Mapping[str, Any]) -> bool:
    return str(message.get("content")).startswith(("Step ", "I read it."))


@pytest.mark.parametrize("harness", ["opencode"], indirect=True)
async def test_opencode_asks_nobody(harness: str, play: Play) -> None:
    ran = await play(harness, engine=ToyModel(trespassing))
    assert (ran.record.failure, ran.record.stop, ran.record.reward) == (None, "submitted", 1.0), ran.told()
    assert {tool.error for tool in ran.record.tools} == {None}, ran.record.tools
    assert "SECRET=1" in ran.record.tools[6].output


def falling_asleep(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mend the toy, then run what does not end."""
    if toy.acted(messages) < 2 or not tools:
        return toy.answer(messages, tools)
    return {"content": "I rest.", "calls": [toy.shell_call(tools, "tail -f /dev/null")]}


@pytest.mark.parametrize("harness", QUICK, indirect=True)
async def test_the_end_of_its_time_keeps_what_was_done_and_said(harness: str, play: Play) -> None:
    ran = await play(harness, engine=ToyModel(falling_asleep), seconds=60.0)
    assert (ran.record.failure, ran.record.stop, ran.record.reward) == (None, "time", 1.0), ran.told()
    said = [str((call.answer or {}).get("content")) for call in ran.found.calls if call.purpose == "agent"]
    assert list(dict.fromkeys(said)) == [*toy.SAYS[:2], "I rest."], ran.told()  # some ask again while it runs
    assert [tool.error for tool in ran.record.tools][:2] == [None, None], ran.record.tools
