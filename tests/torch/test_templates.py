"""Prompts are those of Hugging Face's ``apply_chat_template``, id for id."""

import json
from typing import Any

import pytest
from tests.models import smollm2_folder
from tests.support.models import SPECIAL, TEMPLATES, TOKENS, tokenizer

from orchard.gateway.engines.transformers_engine import libraries
from orchard.gateway.rendering import load_renderer, make_renderer

Message = dict[str, Any]
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": "bash", "description": "Run é <b>", "parameters": {"type": "object"}}}
]
CALLS = [
    {"id": str(n), "type": "function", "function": {"name": "bash", "arguments": {"command": text, "deep": [n, None]}}}
    for n, text in enumerate(['echo "é" && ls <x>', "a\nb"])
]
TALK: list[Message] = [
    {"role": "system", "content": "You are a helper.\n"},
    {"role": "user", "content": " Look <|im_end|> at this: <tool_call> 日本\U0001f600\n"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "\nHm.\n", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "0", "content": "one"},
    {"role": "tool", "tool_call_id": "1", "content": ""},
    {"role": "assistant", "content": "", "reasoning_content": "More.", "tool_calls": CALLS[:1]},
    {"role": "tool", "tool_call_id": "0", "content": "three"},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "And now?"},
]


def written(message: Message) -> Message:
    """A message as it comes over the wire: arguments are text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", [])
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("family", ["qwen3", "qwen3-coder", "hermes"])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
def test_templates_with_tools(family: str, options: dict[str, Any]) -> None:
    theirs = libraries.transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), additional_special_tokens=list(SPECIAL), **TOKENS
    )
    ours = make_renderer(tokenizer(), TEMPLATES[family], TOKENS)
    for end in range(2, len(TALK) + 1):
        for tools in ((), TOOLS):
            for generate in (True, False):
                expected = theirs.apply_chat_template(
                    TALK[:end], tools=list(tools) or None, chat_template=TEMPLATES[family],
                    add_generation_prompt=generate, tokenize=True, return_dict=False, **options,
                )  # fmt: skip
                given = [written(message) for message in TALK[:end]]
                assert ours.render(given, tools, generate=generate, options=options) == expected


def test_a_real_model() -> None:
    folder = smollm2_folder()
    theirs = libraries.transformers().AutoTokenizer.from_pretrained(folder)
    ours = load_renderer(folder)
    assert ours.family == "chatml"
    plain = [message for message in TALK if "tool_calls" not in message and message["role"] != "tool"]
    for end in range(1, len(plain) + 1):
        expected = theirs.apply_chat_template(plain[:end], add_generation_prompt=True, tokenize=True, return_dict=False)
        assert ours.render(plain[:end]) == expected
