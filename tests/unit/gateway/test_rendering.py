"""Rendering: prompts as templates write them, what follows recorded ids, and answers read in any portions."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.models import TEMPLATES, TOKENS, renderer, tokenizer

from orchard.core.errors import InvalidArgument
from orchard.gateway import EngineRefused
from orchard.gateway.engine import Assembly
from orchard.gateway.rendering import make_renderer
from orchard.gateway.rendering.base import Reader
from orchard.trajectories.messages import keys

Message = dict[str, Any]
FAMILIES = sorted(TEMPLATES)
PROPERTIES = {"command": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object"}}
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": PROPERTIES}}}
]
CODE = 'print("</tool_call>")\n</parameter>\n# é 日本 \U0001f600'


def call(arguments: Message, name: str = "bash", call_id: str = "c1") -> Message:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def read(reader: Reader, ids: Sequence[int], portion: int = 1) -> Message:
    assembly = Assembly()
    for at in range(0, len(ids), portion):
        for delta in reader.feed(ids[at : at + portion]):
            assembly.add(delta)
    for delta in reader.end():
        assembly.add(delta)
    return assembly.message


def same(one: Message, two: Message) -> bool:
    return keys([one]) == keys([two])


texts = st.text(st.sampled_from("ab \n<>/{}\"'é日\U0001f600")) | st.sampled_from(
    ["<tool_call>", "x</think>y", "</tool_call>"]
)
values: Any = st.fixed_dictionaries(
    {}, optional={"command": st.just(CODE) | texts, "count": st.integers(), "deep": st.just({"a": [1, None]})}
)


@st.composite
def conversations(draw: Any) -> list[Message]:
    """Whole turns: a user, answers with calls and their results, and a last answer."""
    messages: list[Message] = [{"role": "system", "content": "You are."}] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        for _ in range(draw(st.integers(0, 2))):
            calls = [call(draw(values), call_id=f"c{number + n}") for n in range(draw(st.integers(1, 2)))]
            number += len(calls)
            messages.append({"role": "assistant", "content": draw(st.sampled_from(["", "Look."])), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": one["id"], "content": draw(texts)} for one in calls]
        messages.append({"role": "assistant", "content": "Done."})
    return messages


@pytest.mark.parametrize("family", FAMILIES)
@given(messages=conversations(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_follows_recorded_ids_is_what_the_template_would_write(
    family: str, messages: list[Message], data: Any
) -> None:
    """Where nothing was spliced that differs from the template, splicing and rendering are the same, id for id."""
    known = renderer(family)
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    last = data.draw(st.sampled_from(answers))
    prompt = known.render(messages[:last], TOOLS)
    whole = known.render(messages, TOOLS)
    ids = [*prompt, *known.answer(messages[last])]
    assert whole[: len(ids)] == ids
    assert [*ids, *(known.extend(ids, messages, last + 1) or [])] == whole


@pytest.mark.parametrize("family", FAMILIES)
@given(message=conversations().map(lambda found: found[-2] if found[-2].get("tool_calls") else found[-1]),
       portion=st.integers(1, 9), tags=st.booleans(), thought=st.sampled_from(["", "Hm.\nYes é"]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_answers_are_read_as_they_were_written(
    family: str, message: Message, portion: int, tags: bool, thought: str
) -> None:
    known = renderer(family, tags=tags)
    said = {**message, **({"reasoning_content": thought} if family == "qwen3" and thought else {})}
    prompt = known.render([{"role": "user", "content": "hi"}], TOOLS)
    ids = known.answer(said)
    assert ids[-1] == known.stop_ids[0]
    found = read(known.reader(prompt, TOOLS), ids, portion)
    assert same(found, said)
    assert found.get("reasoning_content", "") == said.get("reasoning_content", "")
    assert read(known.reader(prompt, TOOLS), ids, len(ids)).get("content") == found.get("content")


pieces = st.sampled_from(
    [*TOKENS.values(), "<tool_call>", "</tool_call>", "<think>", "</think>", "\n", " ", "text", "é", "STOP", "ST", "<",
     '{"name": "bash", "arguments": {}}', '{"name": "bash"', "</", "<tool_", "<function=bash>", "</function>"]
)  # fmt: skip


@pytest.mark.parametrize("family", ["qwen3", "qwen3-coder", "chatml"])
@given(
    text=st.lists(pieces, max_size=12).map("".join), cut=st.integers(0, 3), portions=st.lists(st.integers(1, 7)),
    tags=st.booleans(), inside=st.booleans(), stop=st.sampled_from([(), ("STOP",), ("\n", "<")]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_portions_do_not_change_what_is_read(
    family: str, text: str, cut: int, portions: list[int], tags: bool, inside: bool, stop: tuple[str, ...]
) -> None:
    """Nothing is lost either: what is not reasoning, a call or a blank beside one is text."""
    known = renderer(family, tags=tags)
    prompt = known.encode("<think>\n" if inside else "go")
    ids = known.encode(text)
    ids = ids[: len(ids) - cut]
    reader, parts, at = known.reader(prompt, TOOLS, stop=stop), Assembly(), 0
    for size in [*portions, len(ids) or 1]:
        for delta in reader.feed(ids[at : at + size]):
            parts.add(delta)
        at += size
    for delta in reader.end():
        parts.add(delta)
    whole = read(known.reader(prompt, TOOLS, stop=stop), ids, len(ids) or 1)
    assert keys([parts.message]) == keys([whole])
    assert parts.message.get("reasoning_content") == whole.get("reasoning_content")
    if not whole.get("tool_calls") and "think" not in text and not stop and not inside:
        shown = known.text(ids)
        for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
            shown = shown.replace(name, "")
        assert whole["content"] == shown


def test_a_malformed_call_stays_text_and_the_next_one_is_read() -> None:
    known = renderer("qwen3")
    good = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    for bad in (
        '{"name": bash}',
        '{"name": "bash", "arguments": "ls"}',
        '{"name": "bash", "arguments": {"n": NaN}}',
        "[]",
    ):
        text = f"Look.\n<tool_call>\n{bad}\n</tool_call>"
        found = read(known.reader([], TOOLS), known.encode(f"{text}\n{good}"))
        assert found["content"] == text
        assert [one["function"]["arguments"] for one in found["tool_calls"]] == ['{"command": "ls"}']
        assert read(known.reader([], TOOLS), known.encode(text)) == {"role": "assistant", "content": text}
    assert "tool_calls" not in read(known.reader([], ()), known.encode(good))  # nothing may be called
    cut = known.encode(good[:-20])
    assert read(known.reader([], TOOLS), cut)["content"] == good[:-20]
    unclosed = read(known.reader([], TOOLS), known.encode(good.removesuffix("\n</tool_call>")))
    assert len(unclosed["tool_calls"]) == 1


def test_values_of_the_coder_are_what_the_schema_says() -> None:
    known = renderer("qwen3-coder")
    text = (
        "<tool_call>\n<function=bash>\n<parameter=command>\n1\n</parameter>\n<parameter=count>\n12\n</parameter>\n"
        '<parameter=deep>\n{"a": null}\n</parameter>\n<parameter=other>\ntrue\n</parameter>\n</function>\n</tool_call>'
    )
    found = read(known.reader([], TOOLS), known.encode(text))
    arguments = json.loads(found["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"command": "1", "count": 12, "deep": {"a": None}, "other": "true"}


def test_characters_split_over_tokens_arrive_whole() -> None:
    known = renderer("chatml")
    ids = known.encode("a\U0001f600é")
    assert len(ids) > 5
    reader = known.reader([], ())
    deltas = [delta["content"] for number in ids for delta in reader.feed([number])]
    assert deltas == ["a", "\U0001f600", "é"]
    assert read(known.reader([], ()), ids[:-1])["content"] == "a\U0001f600\ufffd"


def test_a_forced_call_begins_in_the_prompt() -> None:
    for family in ("qwen3", "qwen3-coder", "hermes", "chatml"):
        known = renderer(family)
        said = {"role": "assistant", "content": "", "tool_calls": [call({"command": "ls"})]}
        written = known.text(known.answer(said))
        for tool in (None, "bash"):
            prompt = known.render([{"role": "user", "content": "x"}], TOOLS)
            head = known.head(prompt, tool)
            assert written.startswith(head), family
            rest = known.encode(written.removeprefix(head))
            assert same(read(known.reader(prompt, TOOLS, skip=head), rest), said), family
    thinking = renderer("qwen3")
    prompt = thinking.encode("<|im_start|>assistant\n<think>\n")
    found = read(thinking.reader(prompt, TOOLS, skip=thinking.head(prompt, "bash")), thinking.encode('{"count": 1}}'))
    assert found["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"count": 1}'}


def test_an_answer_that_was_cut_is_ended_before_what_follows() -> None:
    known = renderer("qwen3")
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Lo"},
        {"role": "user", "content": "y"},
    ]
    cut = [*known.render(messages[:1]), *known.encode("Lo")]
    assert [*cut, *(known.extend(cut, messages, 2) or [])] == known.render(messages)


def test_messages_are_given_to_templates_as_servers_give_them() -> None:
    known = renderer("qwen3")
    harness = [
        {"role": "developer", "content": [{"type": "text", "text": "one", "cache_control": {}}, "two"]},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call({"command": "ls"})]},
    ]  # fmt: skip
    text = known.text(known.render(harness, generate=False))
    assert "<|im_start|>system\none\ntwo<|im_end|>" in text
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}' in text
    with pytest.raises(EngineRefused, match="image_url"):
        known.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert known.text(known.render(harness, options={"enable_thinking": False})).endswith("<think>\n\n</think>\n\n")


def test_templates_run_as_hugging_faces_do() -> None:
    template = (
        "{%- if not messages %}{{ raise_exception('no messages') }}{% endif %}\n"
        "  {%- for message in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ bos_token }}{{ message.content }}<|im_end|>{% endgeneration %}\n"
        "  {%- endfor %}{{ tools | tojson }}{{ strftime_now('%%') }}"
    )
    known = make_renderer(tokenizer(), template, {"bos_token": "<|im_start|>"}, family="hermes")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    tools: list[Message] = [{"name": "é<"}]
    text = known.text(known.render(messages, tools))
    assert text == '<|im_start|>a<|im_end|><|im_start|>b<|im_end|>[{"name": "é<"}]%'
    with pytest.raises(EngineRefused, match="no messages"):
        known.render([])
    with pytest.raises(InvalidArgument, match="no Jinja"):
        make_renderer(tokenizer(), "{% if %}", TOKENS)
    with pytest.raises(InvalidArgument, match="could end a turn"):
        make_renderer(tokenizer(), "{% for m in messages %}{{ m.content }}.{% endfor %}", TOKENS)


def test_a_family_is_told_by_its_template() -> None:
    for family in FAMILIES:
        named = renderer(family)
        found = make_renderer(tokenizer(), TEMPLATES[family], TOKENS)
        told = "chatml" if family == "plain" else family  # the tokenizer knows ChatML's tokens
        assert found.family == told
        assert (found.template_hash == named.template_hash) == (told == family)
