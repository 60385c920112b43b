"""ChatML without tools of its own (SmolLM2 …), and any other template of that kind.

Tools go into the system text and calls into the content, both as Hermes writes them; results come back as a user's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

from orchard.gateway.rendering.family import Family, function_of, json_call, json_head
from orchard.gateway.rendering.reading import Syntax
from orchard.trajectories.messages import Message

_TOOLS = """# Tools

You may call one or more functions. Their signatures are within <tools></tools>:
<tools>
{signatures}
</tools>

To call one, answer with a JSON object of its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def adapt(messages: list[Message], tools: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
    """Return the conversation without tools: signatures, calls and results as text."""
    plain: list[Message] = []
    for is_result, run in groupby(messages, key=lambda message: message.get("role") == "tool"):
        if is_result:
            results = (f"<tool_response>\n{message.get('content')}\n</tool_response>" for message in run)
            plain.append({"role": "user", "content": "\n".join(results)})
        else:
            plain += [_spoken(message) for message in run]
    return (_told(plain, tools) if tools else plain), ()


def _spoken(message: Message) -> Message:
    calls = cast("list[Message]", message.get("tool_calls") or [])
    if not calls:
        return message
    texts = [f"<tool_call>\n{_call_text(function_of(call))}\n</tool_call>" for call in calls]
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([str(content), *texts] if content else texts)}


def _call_text(function: Message) -> str:
    """Arguments that are no JSON stay as the model wrote them."""
    name, arguments = json.dumps(function.get("name"), ensure_ascii=False), cast("Any", function.get("arguments"))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {text}}}'


def _told(messages: list[Message], tools: Sequence[Message]) -> list[Message]:
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _TOOLS.format(signatures=signatures)
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{messages[0].get('content')}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CHATML = Family("chatml", Syntax(think=None, read=json_call), head=json_head, adapt=adapt, template=TEMPLATE)
