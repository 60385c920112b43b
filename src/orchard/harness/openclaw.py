"""OpenClaw: one ``openclaw agent exec`` in the sandbox, over whichever of the three dialects is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import zstandard

from orchard.harness.database import rows
from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import NODE, Layer
from orchard.harness.native import ToolLog, inner, joined_text, merged, objects
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop

VERSION = "2026.9.6"
_NAME = "orchard"
_APIS = {"chat": "openai-completions", "responses": "openai-responses", "anthropic": "anthropic-messages"}
_TOLD_ANEW = ["process", "sessions_spawn"]
"""Tools whose state each request tells."""
_EVENT = 64 << 20
"""Most bytes of one event."""
_QUERY = "SELECT session_id, event_json, event_zstd FROM transcript_events ORDER BY session_id, seq"


class OpenClaw(Inside):
    """OpenClaw with its own prompt and tools, one turn without a gateway of its own.

    It writes none of its usual files (``SOUL.md`` …) into the work tree. As it comes, it ends each request with a
    message on its commands and sub-agents under way, which the next one lacks: each call is a conversation of its own.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``lean`` (fewer tools, for local models),
    ``code_mode`` (``direct``, ``auto`` or ``code``), ``tool_search`` (false: all its tools are shown at once),
    ``append_only`` (without ``process`` and ``sessions_spawn``, the tools of which that message tells, there is none),
    ``context`` (tokens that the model holds), ``output`` (most tokens of an answer), ``reasoning`` (the model reasons,
    and its reasoning is sent back), ``settings`` (further settings of its ``openclaw.json``), ``args``.
    """

    name, pin = "openclaw", VERSION
    layers = (NODE, Layer("openclaw", npm=(f"openclaw@{VERSION}",), npm_scripts=True))
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_APIS), "lean": bool, "code_mode": ("direct", "auto", "code"), "tool_search": bool,
        "append_only": bool,
        "context": int, "output": int, "reasoning": bool, "settings": dict, "args": list,
    }  # fmt: skip
    records = "agents"

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config, path = request.config, f"{home}/openclaw.json"
        argv = [
            program("openclaw", "openclaw"), "agent", "exec", "--message-file", "-", "--config", path, "--cwd",
            request.workdir, "--json", "--model", f"{_NAME}/{request.model}", "--state-dir", home, "--timeout",
            str(max(1, int(request.limits.seconds))), "--code-mode", config.get("code_mode", "direct"),
            *(["--local-model-lean"] if config.get("lean") else []), *config.get("args", ()),
        ]  # fmt: skip
        env = {"OPENCLAW_STATE_DIR": home, "OPENCLAW_CONFIG_PATH": path, "NO_COLOR": "1", "DO_NOT_TRACK": "1"}
        settings = merged(_settings(request), config.get("settings", {}))
        return Launch(argv, env, {"openclaw.json": json.dumps(settings)}, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: what it printed says how it ended, its database what was done."""
        try:
            end = inner(json.loads(left.stdout.read_bytes()))
        except ValueError:
            end = {}
        log, answers, calls = ToolLog(), set[str](), dict[str, str]()
        native = left.stdout.with_name("trajectory.jsonl")
        with native.open("w") as file:
            for path in left.records:
                for event in _events(path) if path.suffix == ".sqlite" else ():
                    file.write(json.dumps(event) + "\n")
                    _take(event, log, answers, calls)
        done, error = end.get("ok") is True, inner(end, "error")
        limit = Stop.CONTEXT if error.get("kind") == "context_overflow" else None
        words = f"{error.get('kind', '')}: {error['message']}" if error.get("message") and not done else ""
        said = str(end.get("final") or "") if done else None
        return Reading(done, len(answers), said, log.events, native if answers else None, limit, words)


def _settings(request: HarnessRequest) -> dict[str, Any]:
    config = request.config
    dialect, reasoning = config.get("dialect", "chat"), config.get("reasoning", False)
    model = {
        "id": request.model, "name": request.model, "reasoning": reasoning, "input": ["text"],
        "contextWindow": config.get("context", 131072), "maxTokens": config.get("output", 16384),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "compat": {
            "sendSessionIdHeader": True, "sendSessionAffinityHeaders": True, "supportsPromptCacheKey": True,
            **({"requiresReasoningContentOnAssistantMessages": True} if reasoning else {}),
        },
    }  # fmt: skip
    provider = {
        "baseUrl": request.base_url + ("" if dialect == "anthropic" else "/v1"), "apiKey": request.api_key,
        "api": _APIS[dialect], "models": [model],
    }  # fmt: skip
    tools: dict[str, Any] = {} if config.get("tool_search", True) else {"toolSearch": {"enabled": False}}
    if config.get("append_only"):
        tools["deny"] = _TOLD_ANEW
    return {
        "models": {"mode": "replace", "providers": {_NAME: provider}},
        "agents": {"defaults": {"model": {"primary": f"{_NAME}/{request.model}"}, "skipBootstrap": True}},
        "update": {"checkOnStart": False}, "telemetry": {"enabled": False}, "tools": tools,
    }  # fmt: skip


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of an agent's database, with their sessions; what is no event is left out."""
    for row in rows(path, _QUERY):
        try:
            raw = row["event_json"] or zstandard.ZstdDecompressor().decompress(row["event_zstd"], _EVENT)
            event = json.loads(raw)
        except (ValueError, TypeError, zstandard.ZstdError):
            continue
        if isinstance(event, dict):
            yield {"session": row["session_id"], **event}


def _take(event: Mapping[str, Any], log: ToolLog, answers: set[str], calls: dict[str, str]) -> None:
    """Take one event: an answer of the model's, or what came of a tool; ``calls``: tool call -> its last event."""
    message, at = inner(event, "message"), event.get("timestamp")
    call = message.get("toolCallId")
    if message.get("role") == "toolResult":
        details = inner(message, "details")
        failed = "the tool reports an error" if message.get("isError") else None
        text = joined_text(message.get("content"))
        log.answered(calls.get(str(call)), text, exit_code=details.get("exitCode"), error=failed, at=at)
    elif message.get("role") == "assistant" and isinstance(answer := message.get("responseId"), str):
        answers.add(answer)
        for part in objects(message.get("content")):
            if part.get("type") == "toolCall":
                key = calls[str(part.get("id"))] = f"{event.get('id')} {part.get('id')}"
                log.asked(part.get("id"), part.get("name"), part.get("arguments"), answer=answer, at=at, key=key)
