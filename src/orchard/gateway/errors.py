"""Errors of the gateway's own, leaves of ``orchard.core.errors``.

OrchardError
├── InvalidArgument
│   └── BodyTooLarge
├── BudgetExceeded(budget)      the session's turns, tokens, seconds or cost are used up; final
├── EngineRefused(http_status, body) the engine says that the request is wrong; final, passed on as it is
│   ├── ContextOverflow(prompt_tokens, context) the prompt leaves no room for an answer
│   ├── TextOnly                the request holds an image or a file, and the model is asked in text's ids
│   ├── ScriptEnded             a script has no further step
│   └── ReplayMismatch          the request is not the recorded one; the message names the first difference
└── Unavailable
    └── EngineUnavailable(retry_after)  not reached, overloaded, restarting or cut off; may be tried again
"""

from __future__ import annotations

from typing import Any, cast

from orchard.core.errors import InvalidArgument, OrchardError, Unavailable


class BodyTooLarge(InvalidArgument):
    """The request's body is larger than the gateway takes."""

    status = 413


class BudgetExceeded(OrchardError):
    """The session's budget is used up; ``budget`` is ``turns``, ``tokens``, ``seconds`` or ``cost``."""

    code, status = "budget_exceeded", 400

    def __init__(self, message: str, *, budget: str = "turns", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.budget = budget


class EngineRefused(OrchardError):
    """The engine calls the request wrong. ``http_status`` is its own status, ``body`` its answer, where it gave one."""

    code = "engine_refused"

    def __init__(
        self, message: str, *, http_status: int = 400, body: dict[str, Any] | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.http_status, self.body = http_status, body


class ContextOverflow(EngineRefused):
    """The prompt leaves no room for an answer; the code is the one by which harnesses know to compact."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens. Please reduce the length of the messages."
        )
        self.prompt_tokens, self.context = prompt_tokens, context


class TextOnly(EngineRefused):
    """The request holds a part of another kind than text; ``kind`` is its type, ``role`` its message's."""

    code = "text_only"

    def __init__(self, kind: object, role: object) -> None:
        super().__init__(
            f"a message of role {role!r} holds a part of type {kind!r}, and prompts are made of text alone here",
            hint="leave it out, or let the gateway ask a server that takes such parts: --engine openai",
        )


class ScriptEnded(EngineRefused):
    """The script has no step for this turn."""

    code = "script_ended"


class ReplayMismatch(EngineRefused):
    """The request differs from the recorded one."""

    code = "replay_mismatch"


class EngineUnavailable(Unavailable):
    """The engine did not answer, or not to the end; ``retry_after`` is in seconds, None where it did not say."""

    code = "engine_unavailable"

    def __init__(self, message: str, *, retry_after: float | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.retry_after = retry_after


def http_status(error: OrchardError) -> int:
    """Return the status that a harness is told: 503 for whatever may be tried again, else a final 4xx."""
    status = error.http_status if isinstance(error, EngineRefused) else error.status
    return 503 if status >= 500 or status in (408, 429) else status


def told_code(error: OrchardError) -> str:
    """Return the code that a harness is told: the engine's own (``context_length_exceeded`` …) where it gave one."""
    said: Any = error.body.get("error") if isinstance(error, EngineRefused) and error.body else None
    code: Any = cast("dict[str, Any]", said).get("code") if isinstance(said, dict) else None
    return code if isinstance(code, str) else error.code
