"""The recording model gateway: sessions, dialects, engines."""

from orchard.gateway.engine import Delta, Engine, EngineRequest, Final, Part, Prefix, Prompted
from orchard.gateway.engines import ENGINES
from orchard.gateway.engines.openai import OpenAIEngine
from orchard.gateway.engines.replay import ReplayEngine
from orchard.gateway.engines.script import ScriptEngine, bash_step
from orchard.gateway.engines.script_tokens import ScriptedTokens
from orchard.gateway.errors import (
    BudgetExceeded,
    ContextOverflow,
    EngineRefused,
    EngineUnavailable,
    ReplayMismatch,
    ScriptEnded,
    TextOnly,
)
from orchard.gateway.exact import TokenExact
from orchard.gateway.server import Gateway, GatewayConfig
from orchard.gateway.session import Access, Budget, Prices, Session, SessionState
from orchard.gateway.tokens import Ended, Sampling, TokenEngine, TokenRequest, Tokens

__all__ = [
    "ENGINES",
    "Access",
    "Budget",
    "BudgetExceeded",
    "ContextOverflow",
    "Delta",
    "Ended",
    "Engine",
    "EngineRefused",
    "EngineRequest",
    "EngineUnavailable",
    "Final",
    "Gateway",
    "GatewayConfig",
    "OpenAIEngine",
    "Part",
    "Prefix",
    "Prices",
    "Prompted",
    "ReplayEngine",
    "ReplayMismatch",
    "Sampling",
    "ScriptEnded",
    "ScriptEngine",
    "ScriptedTokens",
    "Session",
    "SessionState",
    "TextOnly",
    "TokenEngine",
    "TokenExact",
    "TokenRequest",
    "Tokens",
    "bash_step",
]
