"""Qwen3 and its kin: reasoning in ``<think>``, calls as JSON in ``<tool_call>``; the template writes both."""

from orchard.gateway.rendering.family import Family, json_call, json_head
from orchard.gateway.rendering.reading import Syntax

QWEN3 = Family("qwen3", Syntax(read=json_call), head=json_head)
