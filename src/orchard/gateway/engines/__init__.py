"""Engines: what samples, one file each, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchard.gateway.engine import Engine
from orchard.gateway.engines.openai import OpenAIEngine
from orchard.gateway.engines.replay import ReplayEngine
from orchard.gateway.engines.script import ScriptEngine
from orchard.gateway.engines.sglang import SglangEngine
from orchard.gateway.engines.transformers import TransformersEngine
from orchard.gateway.engines.vllm import VllmEngine
from orchard.gateway.tokens import TokenEngine

ENGINES: Mapping[str, Callable[..., Engine]] = {
    "openai": OpenAIEngine,
    "replay": ReplayEngine,
    "script": ScriptEngine,
}
"""By the name under which the record says who answered."""
TOKEN_ENGINES: Mapping[str, Callable[..., TokenEngine]] = {
    "sglang": SglangEngine,
    "transformers": TransformersEngine,
    "vllm": VllmEngine,
}
"""Those that take and give ids; ``TokenExact`` makes an engine of each."""
