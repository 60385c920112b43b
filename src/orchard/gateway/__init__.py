"""The recording model gateway: sessions, dialects, engines."""

from orchard.gateway.engine import Delta, Engine, EngineRequest, Final
from orchard.gateway.engines import ENGINES
from orchard.gateway.engines.openai import OpenAIEngine
from orchard.gateway.engines.replay import ReplayEngine
from orchard.gateway.engines.script import ScriptEngine, bash_step
from orchard.gateway.errors import BudgetExceeded, EngineRefused, EngineUnavailable, ReplayMismatch, ScriptEnded
from orchard.gateway.server import Gateway, GatewayConfig
from orchard.gateway.session import Budget, Session, SessionState

__all__ = [
    "ENGINES",
    "Budget",
    "BudgetExceeded",
    "Delta",
    "Engine",
    "EngineRefused",
    "EngineRequest",
    "EngineUnavailable",
    "Final",
    "Gateway",
    "GatewayConfig",
    "OpenAIEngine",
    "ReplayEngine",
    "ReplayMismatch",
    "ScriptEnded",
    "ScriptEngine",
    "Session",
    "SessionState",
    "bash_step",
]
