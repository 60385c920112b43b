"""Which messages are the same, and how a difference is named."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.trajectories import schema
from orchard.trajectories.messages import first_difference, keys, reasoning_of

Message = dict[str, Any]


def call(arguments: str, name: str = "f", call_id: str = "c1") -> Message:
    return {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": name, "arguments": arguments}}]}


TEXT = {"role": "user", "content": "hello world"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "input_text", "text": "world"}]}
SAME: list[tuple[Message, Message]] = [
    (TEXT, {"role": "user", "content": [{"type": "text", "text": "hello world"}]}),
    ({"role": "user", "content": "hello\nworld"}, PARTS),
    (TEXT, {"role": "user", "content": [{"type": "text", "text": "hello world", "cache_control": {"type": "x"}}]}),
    ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
    ({"role": "assistant", "content": []}, {"role": "assistant"}),
    ({"role": "assistant", "content": [{"type": "text", "text": ""}]}, {"role": "assistant"}),
    ({"role": "assistant", "content": "x", "refusal": None, "annotations": []}, {"role": "assistant", "content": "x"}),
    ({"role": "assistant", "content": "x", "reasoning_content": "r"}, {"role": "assistant", "content": "x"}),
    ({"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "content": "x"}),
    (call('{"a": 1, "b": 2}'), call('{"b":2,"a":1}')),
    (call("{}"), call("")),
    (call('{"a": 1}', call_id="call_96"), call('{"a": 1}', call_id="call96")),
]
DIFFERENT: list[tuple[Message, Message, str]] = [
    (TEXT, {"role": "system", "content": "hello world"}, "role"),
    (TEXT, {"role": "user", "content": "hello  world"}, "content differs at character 6"),
    ({"role": "user", "content": "helloworld"}, PARTS, "content"),
    ({"role": "assistant", "content": "x", "refusal": "no"}, {"role": "assistant", "content": "x"}, "refusal"),
    (call('{"a": 1}'), call('{"a": true}'), "tool_calls"),
    (call('{"a": 1}'), call('{"a": 1}', name="g"), "tool_calls"),
    (call('{"a": 1'), call('{"a":1'), "tool_calls"),  # broken JSON counts as it stands
    (TEXT, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_the_same(left: Message, right: Message) -> None:
    assert keys([left]) == keys([right])
    assert first_difference([left], [right]) is None


@pytest.mark.parametrize(("left", "right", "word"), DIFFERENT)
def test_different(left: Message, right: Message, word: str) -> None:
    assert keys([left]) != keys([right])
    difference = first_difference([TEXT, left], [TEXT, right])
    assert difference is not None
    assert difference.startswith("message 1")
    assert word in difference


def test_lengths_differ() -> None:
    assert first_difference([TEXT], [TEXT, TEXT]) == "2 messages, recorded were 1"


def test_reasoning_has_several_names() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert reasoning_of({"role": "assistant", name: "why"}) == "why"
    assert reasoning_of({"role": "assistant", "reasoning": None}) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name", "refusal", "reasoning", "x"])


@given(st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=4))
def test_whatever_a_harness_sends_has_a_key_and_is_not_changed(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    assert len(keys(messages)) == len(messages)
    assert first_difference(messages, messages) is None
    assert messages == before


def test_the_schema_is_published() -> None:
    published = schema()
    kinds = {branch["$ref"].rsplit("/", 1)[1] for branch in published["oneOf"]}
    assert kinds == {"CallRecord", "RetryRecord", "RefusalRecord", "SessionRecord", "RolloutRecord"}
    assert published["$defs"]["CallRecord"]["additionalProperties"] is False
