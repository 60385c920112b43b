"""Renderers for tests: a small byte-level tokenizer trained on the spot, and templates in the form of the families'."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from orchard.gateway.rendering import make_renderer
from orchard.gateway.rendering.render import TemplateRenderer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TOKENS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_TEXT = [
    "You are a helpful assistant. The function returns the sum of a and b, and the tests pass.",
    '{"name": "bash", "arguments": {"command": "ls -la /testbed && cat setup.py"}}',
    "def add(a, b):\n    return a + b\n\nsystem user assistant tool\n\n",
    "Let me look at the files first. I will run the tests, then fix what is broken.",
]

_HEAD = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nCall them so: FORM<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = messages|length - 1 - loop.index0 %}
    {%- if ns.open and message.role == 'user' %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
REASONING
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
CALL
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
NO THOUGHT
{%- endif %}
"""
_REASONING = """\
        {%- if message.reasoning_content and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}"""
_NO_THOUGHT = """\
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}"""
_JSON = """\
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {{- call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}"""
_XML = """\
            {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for name, value in call.function.arguments | items %}
                {{- '<parameter=' + name + '>\\n' }}
                {%- set plain = value is not mapping and (value is string or value is not sequence) %}
                {{- value | string if plain else value | tojson }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}"""


def _written(form: str, reasoning: str, call: str) -> str:
    head = _HEAD.replace("NO THOUGHT", _NO_THOUGHT if reasoning else "")
    lines = head.replace("FORM", form).replace("REASONING", reasoning).replace("CALL", call)
    return "\n".join(line for line in lines.splitlines() if line.strip())


TEMPLATES: dict[str, str | None] = {
    "qwen3": _written("{JSON}", _REASONING, _JSON),
    "qwen3-coder": _written("<function=name>", "", _XML),
    "hermes": _written("{JSON}", "", _JSON),
    "chatml": None,
    "plain": None,
}


@cache
def _trained(tags: bool) -> str:
    """A tokenizer of 500 pieces and its added tokens, as JSON; where ``tags`` are no tokens, they are split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    if tags:
        tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAGS])
    return tokenizer.to_str()


def tokenizer(*, tags: bool = True) -> Tokenizer:
    return Tokenizer.from_str(_trained(tags))


@cache
def renderer(family: str, *, tags: bool = True) -> TemplateRenderer:
    tokens = TOKENS if family != "plain" else {"eos_token": "<|endoftext|>"}
    return make_renderer(tokenizer(tags=tags), TEMPLATES[family], tokens, family=family)
