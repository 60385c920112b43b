"""Hermes Agent: one ``hermes chat -q`` in the sandbox, over whichever of the three dialects is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchard.harness.database import rows
from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import PYTHON, Layer
from orchard.harness.native import ToolLog, arguments_of, inner, merged, objects
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop

VERSION = "0.19.0"
_NAME = "orchard"
_TRANSPORTS = {"chat": "chat_completions", "responses": "codex_responses", "anthropic": "anthropic_messages"}
_LAYER = Layer(
    "hermes-agent", python=(f"hermes-agent[anthropic]=={VERSION}",),
    constraints=Path(__file__).with_name("hermes_agent.txt"),
)  # fmt: skip
_TOOLSETS = ("terminal", "file")
_SESSION = re.compile(r"^session_id: (\S+)$", re.MULTILINE)
_UPDATES = {"ts": 4_000_000_000, "behind": 0, "rev": None, "ver": VERSION}
"""What its check for updates is found to have said, so that it does not make one."""


class HermesAgent(Inside):
    """The Hermes agent with its own prompt; by default with its tools for terminals and files alone.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``toolsets`` (names of its tool sets, such as
    ``delegation``), ``context`` (tokens that the model holds), ``output`` (most tokens of an answer), ``stream``
    (answers are streamed), ``settings`` (further settings of its ``config.yaml``), ``args`` (further arguments).
    """

    name, pin = "hermes-agent", VERSION
    layers = (PYTHON, _LAYER)
    needs = ("bash",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_TRANSPORTS), "toolsets": list, "context": int, "output": int, "stream": bool,
        "settings": dict, "args": list,
    }  # fmt: skip
    records = "hermes"

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config = request.config
        argv = [
            program("hermes-agent", "hermes"), "chat", "-Q", "--yolo", "--accept-hooks", "--ignore-rules",
            "-t", ",".join(config.get("toolsets", _TOOLSETS)), "--max-turns", str(request.limits.turns),
            *config.get("args", ()), f"--query={request.instruction}",
        ]  # fmt: skip
        files = {
            "hermes/config.yaml": json.dumps(merged(_settings(request), config.get("settings", {}))),  # JSON is YAML
            "hermes/.no-bundled-skills": "", "hermes/.update_check": json.dumps(_UPDATES),
        }  # fmt: skip
        return Launch(argv, {"HERMES_HOME": f"{home}/{self.records}", "HERMES_ACCEPT_HOOKS": "1"}, files)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: the last message of the session that it names at its end decides."""
        database = next((path for path in left.records if path.name == "state.db"), None)
        sessions = list(rows(database, "SELECT * FROM sessions ORDER BY started_at")) if database else []
        messages = list(rows(database, "SELECT * FROM messages ORDER BY id")) if database else []
        named = _SESSION.findall(left.result.text + "\n" + left.result.error_text)
        log, calls = ToolLog(), dict[str, str]()
        for message in messages:
            _take(message, log, calls)
        native = left.stdout.with_name("trajectory.jsonl")
        native.write_text("".join(json.dumps(row, default=repr) + "\n" for row in (*sessions, *messages)))
        last = next((one for one in reversed(messages) if one.get("session_id") in named[-1:]), {})
        done = last.get("role") == "assistant" and last.get("finish_reason") == "stop"
        spent = any(_spent(one) for one in sessions if one.get("id") in named[-1:])
        turns = sum(one.get("role") == "assistant" for one in messages)
        return Reading(
            done, turns, str(last.get("content") or "") if done else None, log.events, native if messages else None,
            limit=Stop.TURNS if spent and not done else None,
            words="" if done else left.result.text[-1000:] + left.result.error_text[-1000:],
        )  # fmt: skip


def _settings(request: HarnessRequest) -> dict[str, Any]:
    config = request.config
    dialect = config.get("dialect", "chat")
    provider = {
        "api": request.base_url + ("" if dialect == "anthropic" else "/v1"), "api_key": request.api_key,
        "discover_models": False, "transport": _TRANSPORTS[dialect],
    }  # fmt: skip
    model = {
        "provider": _NAME, "default": request.model, "context_length": config.get("context", 131072),
        "max_tokens": config.get("output", 16384),
    }  # fmt: skip
    return {
        "model": model, "providers": {_NAME: provider}, "approvals": {"mode": "off"},
        "auxiliary": {"title_generation": {"enabled": False}}, "display": {"streaming": config.get("stream", False)},
        "security": {"tirith_enabled": False}, "terminal": {"timeout": int(request.limits.command_seconds)},
    }  # fmt: skip


def _spent(session: Mapping[str, Any]) -> bool:
    """Return whether a session has made all the calls that it was allowed."""
    most = arguments_of(session.get("model_config")).get("max_iterations")
    made = session.get("api_call_count")
    return isinstance(most, int) and isinstance(made, int) and made >= most


def _take(message: Mapping[str, Any], log: ToolLog, calls: dict[str, str]) -> None:
    """Take one message; ``calls``: tool call -> the last message that asked for it."""
    at = message.get("timestamp")
    at = at * 1000 if isinstance(at, int | float) else None
    call = str(message.get("tool_call_id"))
    if message.get("role") == "tool":
        text = str(message.get("content") or "")
        said = arguments_of(text)
        error = said.get("error")
        log.answered(calls.get(call), text, exit_code=said.get("exit_code"), error=error and str(error), at=at)
    elif message.get("role") == "assistant":
        for part in _calls(message.get("tool_calls")):
            key = calls[str(part.get("id"))] = f"{message.get('id')} {part.get('id')}"
            function = inner(part, "function")
            arguments = arguments_of(function.get("arguments"))
            log.asked(part.get("id"), function.get("name"), arguments, at=at, key=key)


def _calls(value: Any) -> Sequence[dict[str, Any]]:
    try:
        return objects(json.loads(value))
    except (ValueError, TypeError):
        return ()
