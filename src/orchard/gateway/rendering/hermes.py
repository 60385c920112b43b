"""Hermes, Qwen2.5 and others that call tools as JSON in ``<tool_call>``, without reasoning of their own."""

from orchard.gateway.rendering.family import Family, json_call, json_head
from orchard.gateway.rendering.reading import Syntax

HERMES = Family("hermes", Syntax(think=None, read=json_call), head=json_head)
