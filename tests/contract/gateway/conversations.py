"""Any conversation and any answer in the common form, and how each dialect writes a conversation; made for tests only.

The writers know nothing of the code that reads: what they write is what the dialects' own documents say.
"""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from orchard.gateway.dialects.anthropic.signature import signature

Message = dict[str, Any]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ARGUMENTS = st.dictionaries(TEXT, st.one_of(TEXT, st.integers(-9, 9), st.booleans(), st.none(), st.lists(TEXT)))
PNG = "data:image/png;base64,AA=="


@st.composite
def answers(draw: st.DrawFn) -> Message:
    """An assistant's message."""
    message: Message = {"role": "assistant", "content": draw(st.one_of(st.just(""), WORDS))}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(WORDS)
    functions = [
        {"name": name, "arguments": json.dumps(one)}
        for name, one in zip("abc", draw(st.lists(ARGUMENTS, max_size=3)), strict=False)
    ]
    if functions:
        head, message["content"] = f"c{draw(st.integers(0, 999999))}", message["content"] or None
        message["tool_calls"] = [
            {"id": f"{head}_{at}", "type": "function", "function": function} for at, function in enumerate(functions)
        ]
    return message


@st.composite
def contents(draw: st.DrawFn) -> Any:
    """What a user or a tool says."""
    parts: list[Message] = [{"type": "text", "text": text} for text in draw(st.lists(WORDS, min_size=1, max_size=3))]
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), {"type": "image_url", "image_url": {"url": PNG}})
    return parts if len(parts) > 1 else draw(st.sampled_from([parts, parts[0].get("text", parts)]))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A whole prompt: each call has its result, and the user speaks before the model does."""
    messages: list[Message] = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(contents())})
        for _ in range(draw(st.integers(0, 2))):
            answer = draw(answers())
            messages.append(answer)
            for call in answer.get("tool_calls", []):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": draw(contents())})
            if "tool_calls" not in answer:
                break
    return messages


def as_chat(messages: list[Message]) -> Message:
    return {"model": "m", "messages": messages}


def as_responses(messages: list[Message]) -> Message:
    items: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            output = _responses_content(message["content"])
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": output})
        elif message["role"] == "assistant":
            items += _responses_answer(message)
        else:
            role = {"system": "developer"}.get(message["role"], message["role"])
            items.append({"role": role, "content": _responses_content(message["content"])})
    return {"model": "m", "input": items}


def _responses_answer(message: Message) -> list[Message]:
    items: list[Message] = []
    if message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": message["reasoning_content"]}]
        items.append({"type": "reasoning", "summary": summary, "encrypted_content": None})
    if message["content"] or (not items and not message.get("tool_calls")):
        content = [{"type": "output_text", "text": message["content"], "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    for call in message.get("tool_calls", []):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def _responses_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"]}
        for part in content
    ]


def as_anthropic(messages: list[Message]) -> Message:
    body: Message = {"model": "m", "max_tokens": 9, "messages": []}
    for message in messages:
        last: Message = body["messages"][-1] if body["messages"] else {"role": ""}
        if message["role"] == "system":
            body["system"] = message["content"]
        elif message["role"] == "assistant":
            body["messages"].append({"role": "assistant", "content": _anthropic_answer(message)})
        elif message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            block["content"] = _anthropic_content(message["content"])
            if last["role"] == "user" and last["content"][0]["type"] == "tool_result":
                last["content"].append(block)
            else:
                body["messages"].append({"role": "user", "content": [block]})
        elif last["role"] == "user":
            last["content"] += _anthropic_content(message["content"])
        else:
            body["messages"].append({"role": "user", "content": _anthropic_content(message["content"])})
    return body


def _anthropic_answer(message: Message) -> list[Message]:
    blocks: list[Message] = []
    if thought := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": thought, "signature": signature(thought)})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", []):
        arguments = json.loads(call["function"]["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
    return blocks


def _anthropic_content(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    return [part if part["type"] == "text" else {"type": "image", "source": source} for part in content]


WRITERS: dict[str, Callable[[list[Message]], Message]] = {
    "openai.chat": as_chat,
    "openai.responses": as_responses,
    "anthropic.messages": as_anthropic,
}


@st.composite
def deltas_of(draw: st.DrawFn, message: Message) -> list[Message]:
    """An answer cut into deltas; each part of it in its own order, the parts in any."""
    queues: list[list[Message]] = [
        [{field: piece} for piece in cut(draw, message.get(field) or "")] for field in ("reasoning_content", "content")
    ]
    for index, call in enumerate(message.get("tool_calls", [])):
        head = {"index": index, "id": call["id"], "type": "function", "function": {"name": call["function"]["name"]}}
        pieces = [{"index": index, "function": {"arguments": one}} for one in cut(draw, call["function"]["arguments"])]
        queues.append([{"tool_calls": [piece]} for piece in [head, *pieces]])
    tidy = draw(st.booleans())
    deltas: list[Message] = []
    while queues := [queue for queue in queues if queue]:
        deltas.append(queues[0 if tidy else draw(st.integers(0, len(queues) - 1))].pop(0))
    return deltas


def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
