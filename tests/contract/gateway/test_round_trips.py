"""Whatever is written in a dialect reads back as itself, and a stream says what the whole answer says."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.gateway.conversations import WRITERS, Message, answers, conversations, deltas_of

from orchard.core.errors import InvalidArgument
from orchard.gateway import Delta, Final
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.dialects.base import Dialect, ModelRequest
from orchard.trajectories import Usage
from orchard.trajectories.messages import normal_forms, reasoning_of

EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
ASK: list[Message] = [{"role": "user", "content": "hi"}]
LOOSE = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def read(dialect: Dialect, messages: list[Message], **more: Any) -> ModelRequest:
    return dialect.parse(json.dumps(WRITERS[dialect.name](messages) | more).encode(), {})


def meaning(messages: list[Message]) -> Any:
    return normal_forms(joined(messages)), [reasoning_of(message) for message in joined(messages)]


def joined(messages: list[Message]) -> list[Message]:
    """Users' messages in a row are one, since in Anthropic's form they are."""
    merged: list[Message] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] == "user":
            merged[-1] = {"role": "user", "content": parts(merged[-1]) + parts(message)}
        else:
            merged.append(message)
    return merged


def parts(message: Message) -> list[Message]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


@EACH
@LOOSE
@given(conversations())
def test_a_conversation_reads_back_as_itself(dialect: Dialect, messages: list[Message]) -> None:
    asked = read(dialect, messages)
    assert meaning(asked.messages) == meaning(messages)
    assert (asked.model, asked.tools, asked.dropped) == ("m", [], ())


@EACH
@LOOSE
@given(answers().flatmap(lambda message: st.tuples(st.just(message), deltas_of(message))))
def test_a_stream_says_what_the_whole_answer_says(dialect: Dialect, case: tuple[Message, list[Message]]) -> None:
    message, deltas = case
    final = Final(message, "tool_calls" if message.get("tool_calls") else "stop", Usage(prompt_tokens=3))
    asked = read(dialect, ASK)
    whole = json.loads(dialect.answer(asked, "id-0abc", "m", final))
    stream = dialect.events(asked, "id-0abc", "m")
    written = stream.begin() + b"".join(stream.delta(Delta(one)) for one in deltas) + stream.alive() + stream.end(final)
    events = [json.loads(line[6:]) for line in written.decode().split("\n") if line.startswith("data: {")]
    for answer in (whole, ASSEMBLE[dialect.name](events)):
        echo = ECHO[dialect.name](answer)
        body = WRITERS[dialect.name](ASK)
        history = "messages" if "messages" in body else "input"
        back = dialect.parse(json.dumps(body | {history: [*body[history], *echo]}).encode(), {})
        assert meaning(back.messages) == meaning([*ASK, message])


def chat_assembled(events: list[Message]) -> Message:
    message: Message = {"content": "", "tool_calls": {}}
    for event in events:
        delta = event["choices"][0]["delta"]
        for name in ("content", "reasoning_content"):
            message[name] = message.get(name, "") + (delta.get(name) or "")
        for piece in delta.get("tool_calls", []):
            call = message["tool_calls"].setdefault(piece["index"], {"function": {"arguments": ""}})
            call |= {key: value for key, value in piece.items() if key not in ("index", "function")}
            call["function"]["name"] = piece["function"].get("name") or call["function"]["name"]
            call["function"]["arguments"] += piece["function"].get("arguments") or ""
    calls = [call for _, call in sorted(message.pop("tool_calls").items())]
    return {"choices": [{"message": {"role": "assistant", **message} | ({"tool_calls": calls} if calls else {})}]}


def responses_assembled(events: list[Message]) -> Message:
    """By deltas alone, each checked against what closes it."""
    texts: dict[int, str] = {}
    items: dict[int, Message] = {}
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(texts)
            texts[event["output_index"]] = ""
        elif kind.endswith(".delta"):
            texts[event["output_index"]] += event["delta"]
        elif kind == "output_item.done":
            items[event["output_index"]] = event["item"]
    assert list(items.values()) == events[-1]["response"]["output"]
    for at, item in items.items():
        said = item["arguments"] if "arguments" in item else (item.get("content") or item["summary"])[0]["text"]
        assert said == texts[at]
    return {"output": list(items.values())}


def anthropic_assembled(events: list[Message]) -> Message:
    blocks: list[Message] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            arguments = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            for name, value in event["delta"].items():
                if name == "partial_json":
                    arguments += value
                    blocks[-1]["raw"] = arguments
                elif name != "type":
                    blocks[-1][name] += value
    return {
        "content": [block | {"input": json.loads(block.pop("raw"))} if "raw" in block else block for block in blocks]
    }


ASSEMBLE = {
    "openai.chat": chat_assembled,
    "openai.responses": responses_assembled,
    "anthropic.messages": anthropic_assembled,
}
ECHO = {
    "openai.chat": lambda answer: [answer["choices"][0]["message"]],
    "openai.responses": lambda answer: answer["output"],
    "anthropic.messages": lambda answer: [{"role": "assistant", "content": answer["content"]}],
}

NAMES = sorted({name for dialect in DIALECTS.values() for field in dialect.fields for name in field.split(".")} - {"*"})
WORDS = [*NAMES, "type", "role", "text", "user", "assistant", "system", "call_id", "id", "name", "source", "base64"]
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.sampled_from(WORDS), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)),
    max_leaves=12,
)


@EACH
@LOOSE
@given(st.dictionaries(st.sampled_from(WORDS), ODD, max_size=5), st.dictionaries(st.sampled_from(NAMES), st.text()))
def test_whatever_comes_is_read_or_refused(dialect: Dialect, body: Message, headers: dict[str, str]) -> None:
    messages = [{"role": "user", "content": [body]}, {"role": "assistant", "content": [body]}, body]
    for one in (body, {"messages": messages, **body}, {"input": messages, **body}, {"input": [body]}):
        try:
            asked = dialect.parse(json.dumps(one).encode(), headers)
        except InvalidArgument as error:
            assert str(error)  # noqa: PT017 — the other way is fine too
        else:
            assert asked.messages
            assert all(isinstance(message["role"], str) for message in asked.messages)
