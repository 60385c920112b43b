"""Codex CLI: one ``codex exec`` in the sandbox, over the responses dialect, which is the only one it speaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import Layer
from orchard.harness.native import ToolLog, arguments_of, inner, joined_text, json_lines
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest
from orchard.harness.toml import document

VERSION = "0.171.0"
_PROVIDER = "orchard"
_KEY = "ORCHARD_API_KEY"


class Codex(Inside):
    """The Codex CLI with its own prompts and tools; its web search is off, since its server would have to make it.

    Options: ``disable`` (features to switch off, such as ``multi_agent``, ``goals``, ``plugins``, ``apps``),
    ``context`` (tokens that the model holds), ``compact_at`` (tokens at which it compacts), ``effort`` (of reasoning),
    ``settings`` (further settings of its ``config.toml``, by dotted key).
    """

    name, pin = "codex", VERSION
    layers = (
        Layer("codex", npm=(f"@openai/codex@{VERSION}",), links={"codex": "@openai/codex-linux-*/vendor/*/bin/codex"}),
    )
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "disable": list, "context": int, "compact_at": int, "effort": str, "settings": dict,
    }  # fmt: skip
    records = "sessions"

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config = request.config
        provider = {
            "name": _PROVIDER, "base_url": f"{request.base_url}/v1", "env_key": _KEY, "wire_api": "responses",
            "request_max_retries": 4, "stream_max_retries": 5, "stream_idle_timeout_ms": 1_200_000,
        }  # fmt: skip
        settings: dict[str, Any] = {
            "model": request.model, "model_provider": _PROVIDER, "model_providers": {_PROVIDER: provider},
            "allow_login_shell": False, "web_search": "disabled", "check_for_update_on_startup": False,
            "analytics": {"enabled": False}, "otel": {"exporter": "none"},
        }  # fmt: skip
        for option, key in _SETTINGS.items():
            if option in config:
                settings[key] = config[option]
        settings |= config.get("settings", {})
        disabled = [word for feature in config.get("disable", ()) for word in ("--disable", feature)]
        argv = [
            program("codex", "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "--json", *disabled, "-",
        ]  # fmt: skip
        files = {"config.toml": document(settings)}
        return Launch(argv, {"CODEX_HOME": home, _KEY: request.api_key}, files, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: what it printed says how it ended, its rollout files what was done."""
        words, done, failed = None, False, ""
        for event in json_lines(left.stdout):
            kind, item = event.get("type"), inner(event, "item")
            if kind == "item.completed" and item.get("type") == "agent_message":
                words = str(item.get("text", ""))
            elif kind in ("turn.completed", "turn.failed"):
                done = kind == "turn.completed"
                failed = str(inner(event, "error").get("message", ""))
            elif kind == "error":
                failed = str(event.get("message", ""))
        log, turns = ToolLog(), 0
        for path in left.records:
            turns += _read_rollout(path, log)
        return Reading(
            done, turns, words if done else None, log.events, _main(left.records), words="" if done else failed
        )


_SETTINGS = {
    "context": "model_context_window", "compact_at": "model_auto_compact_token_limit",
    "effort": "model_reasoning_effort",
}  # fmt: skip
"""Option -> key of ``config.toml``."""


def _read_rollout(path: Path, log: ToolLog) -> int:
    """Take the tool calls of one thread's file into ``log``; return how many answers of the model it names."""
    turns, waiting, codes = 0, list[str](), dict[str, Any]()
    for facts in json_lines(path):
        item, at = inner(facts, "payload"), facts.get("timestamp")
        kind = item.get("type")
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            arguments = item.get("arguments", item.get("input", item.get("action")))
            log.asked(item.get("call_id"), item.get("name", kind), arguments_of(arguments), at=at)
            waiting.append(str(item.get("call_id")))
        elif kind == "item_completed":
            codes[str(inner(item, "item").get("id"))] = inner(item, "item").get("exit_code")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call = str(item.get("call_id"))
            log.answered(call, _output(item.get("output")), exit_code=codes.get(call), at=at)
        elif facts.get("type") == "token_usage_record":
            turns += 1
            log.came_of(waiting, item.get("response_id"))
            waiting = []
    return turns


def _output(value: Any) -> str:
    return joined_text(value.get("content") if isinstance(value, Mapping) else value)


def _main(records: Any) -> Path | None:
    return next(iter(_by_start(records)), None)


def _by_start(records: Any) -> Iterator[Path]:
    yield from sorted(records, key=lambda path: path.name)
