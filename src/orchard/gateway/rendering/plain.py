"""The fallback for a model without a chat template: names before texts, an end-of-text token after each answer."""

from orchard.gateway.rendering.chatml import adapt
from orchard.gateway.rendering.family import Family, json_call, json_head
from orchard.gateway.rendering.reading import Syntax

_TEMPLATE = """\
{%- for message in messages %}
    {{- message['role'] | capitalize + ':\\n' + message['content'] }}
    {{- (eos_token if message['role'] == 'assistant' else '') + '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:\\n' }}
{%- endif %}
"""

PLAIN = Family("plain", Syntax(think=None, read=json_call), head=json_head, adapt=adapt, template=_TEMPLATE)
