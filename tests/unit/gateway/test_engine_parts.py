"""Scripts, and the assembly of an answer out of deltas."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.core.errors import InvalidArgument
from orchard.gateway import Delta, EngineRequest, Final, ScriptEnded, ScriptEngine, bash_step
from orchard.gateway.engine import Assembly, as_delta

USER = [{"role": "user", "content": "one two three"}]


async def ask(engine: ScriptEngine, turn: int = 0, stream: bool = False) -> tuple[list[Delta], Final]:
    request = EngineRequest(session="se", turn=turn, model="m", messages=USER, stream=stream)
    parts = [part async for part in engine.complete(request)]
    assert isinstance(parts[-1], Final)
    return [part for part in parts if isinstance(part, Delta)], parts[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_deltas_make_the_final_message(stream: bool) -> None:
    steps = ["plain text here", bash_step("ls", "look"), {"content": "", "calls": [{"name": "a"}, {"name": "b"}]}, ""]
    engine = ScriptEngine(steps)
    for turn in range(len(steps)):
        deltas, final = await ask(engine, turn, stream)
        assembly = Assembly()
        for delta in deltas:
            assembly.add(delta.delta)
        assert assembly.message == final.message
        assert final.finish_reason == ("tool_calls" if turn in (1, 2) else "stop")
        ids = [call["id"] for call in final.message.get("tool_calls", [])]
        assert len(set(ids)) == len(ids)
        assert final.usage.prompt_tokens == 3
        assert final.usage.estimated
    with pytest.raises(ScriptEnded):
        await ask(engine, len(steps))


async def test_repeat_and_function() -> None:
    assert (await ask(ScriptEngine(["a", "b"], at_end="repeat"), 9))[1].message["content"] == "b"

    def answer(messages: Any, tools: Any) -> dict[str, str]:
        return {"bash": f"echo {len(messages)} {len(tools)}"}

    call = (await ask(ScriptEngine(answer)))[1].message["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"command": "echo 1 0"}


async def test_scripts_from_files(tmp_path: Path) -> None:
    files = {
        "a.json": '["one", {"bash": "ls"}]',
        "a.toml": '[[steps]]\ncontent = "one"\n[[steps]]\nbash = "ls"\n',
        "a.py": 'STEPS = ["one", {"bash": "ls"}]\n',
        "b.py": 'def answer(messages, tools):\n    return "one"\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        engine = ScriptEngine.load(tmp_path / name)
        assert (await ask(engine))[1].message["content"] == "one", name


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("s.json", '{"no": 1}', "no list of steps"),
        ("s.json", "no json", "cannot be read"),
        ("s.toml", "no =", "cannot be read"),
        ("s.py", "no =", "cannot be read"),
        ("s.json", '["one", 2]', "step 2 "),
        ("s.json", '[{"bash": 5}]', "step 1 "),
        ("s.json", '[{"calls": 5}]', "step 1 "),
        ("s.json", '[{"calls": [{"arguments": {}}]}]', "step 1 "),
        ("s.json", '[{"tool_calls": [{"function": "ls"}]}]', "step 1 "),
    ],
)
def test_a_file_that_is_no_script_is_told_as_such(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        ScriptEngine.load(tmp_path / name)


@given(st.lists(st.text(max_size=6), max_size=5), st.lists(st.text(max_size=6), max_size=3), st.integers(0, 6))
def test_assembly_of_any_cut(words: list[str], arguments: list[str], cut: int) -> None:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": f"f{n}", "arguments": text}}
        for n, text in enumerate(arguments)
    ]
    content = "".join(words)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    assembly = Assembly()
    for word in words:
        assembly.add({"content": word})
    for index, call in enumerate(calls):
        text = call["function"]["arguments"]
        head = {"name": call["function"]["name"], "arguments": text[:cut]}
        assembly.add({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": head}]})
        assembly.add({"tool_calls": [{"index": index, "function": {"arguments": text[cut:]}}]})
    assert assembly.message == message
    whole = Assembly()
    whole.add(as_delta(message))
    assert whole.message == message


def test_reasoning_is_kept() -> None:
    assembly = Assembly()
    assembly.add({"role": "assistant", "reasoning_content": "wh"})
    assembly.add({"reasoning_content": "y", "content": None})
    assembly.add({"content": "x"})
    assert assembly.message == {"role": "assistant", "content": "x", "reasoning_content": "why"}
