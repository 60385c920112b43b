"""opencode: one ``opencode run`` in the sandbox, over whichever of the three dialects is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import Layer
from orchard.harness.native import ToolLog, inner, json_lines
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest

VERSION = "1.18.33"
_PROVIDER = "orchard"
_ADAPTERS = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "anthropic": "@ai-sdk/anthropic"}
"""All three come with the program."""
_QUIET = ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD")
_FOLDERS = ("CONFIG", "DATA", "CACHE", "STATE")


class OpenCode(Inside):
    """opencode with its own prompts and tools; it asks for no title, since it is given one.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``context`` (tokens that the model holds),
    ``output`` (most tokens of an answer), ``snapshot`` (keep a git snapshot of each step, off by default),
    ``settings`` (of its ``opencode.json``), ``args`` (further arguments).
    """

    name, pin = "opencode", VERSION
    layers = (Layer("opencode", npm=(f"opencode-ai@{VERSION}",)),)
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_ADAPTERS), "context": int, "output": int, "snapshot": bool, "settings": dict, "args": list,
    }  # fmt: skip

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config = request.config
        provider = {
            "npm": _ADAPTERS[config.get("dialect", "chat")], "name": _PROVIDER,
            "options": {"baseURL": f"{request.base_url}/v1", "apiKey": request.api_key},
            "models": {request.model: {"limit": _limit(config), "tool_call": True}},
        }  # fmt: skip
        named = f"{_PROVIDER}/{request.model}"
        settings = {
            "autoupdate": False, "share": "disabled", "model": named, "small_model": named,
            "snapshot": config.get("snapshot", False), "provider": {_PROVIDER: provider},
            "permission": {"edit": "allow", "bash": "allow", "webfetch": "allow"}, **config.get("settings", {}),
        }  # fmt: skip
        env = {
            **dict.fromkeys(_QUIET, "1"), "OPENCODE_CONFIG": f"{home}/opencode.json",
            **{f"XDG_{folder}_HOME": f"{home}/{folder.lower()}" for folder in _FOLDERS},
        }  # fmt: skip
        argv = [program("opencode", "opencode"), "run", "--format", "json", "--title", "run", *config.get("args", ())]
        return Launch(argv, env, {"opencode.json": json.dumps(settings)}, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: it may exit with 1 after it has recovered, so its last event decides."""
        log, turns, words, texts, reason = ToolLog(), 0, "", list[str](), ""
        for event in json_lines(left.stdout):
            kind, part = event.get("type"), inner(event, "part")
            if kind == "tool_use":
                _take(part, log)
            elif kind == "text":
                texts.append(str(part.get("text", "")))
            elif kind == "step_finish":
                turns, reason, words = turns + 1, str(part.get("reason", "")), ""
            elif kind == "error":
                words = json.dumps(event.get("error"))
        done = reason == "stop" and not words
        return Reading(done, turns, texts[-1] if done and texts else None, log.events, left.stdout, words=words)


def _limit(config: Mapping[str, Any]) -> dict[str, int]:
    return {"context": config.get("context", 131072), "output": config.get("output", 16384)}


def _take(part: Mapping[str, Any], log: ToolLog) -> None:
    state = inner(part, "state")
    times = inner(state, "time")
    log.asked(part.get("callID"), part.get("tool"), state.get("input"), at=times.get("start"))
    error = state.get("error") if state.get("status") == "error" else None
    log.answered(
        part.get("callID"), str(state.get("output") or ""), exit_code=inner(state, "metadata").get("exit"),
        error=str(error) if error else None, at=times.get("end"),
    )  # fmt: skip
