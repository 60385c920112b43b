"""pi: one ``pi -p`` in the sandbox, over whichever of the three dialects is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import NODE, Layer
from orchard.harness.native import ToolLog, inner, joined_text, json_lines, objects
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop

VERSION = "1.6.0"
_PROVIDER = "orchard"
_APIS = {"chat": "openai-completions", "responses": "openai-responses", "anthropic": "anthropic-messages"}


class Pi(Inside):
    """The pi coding agent with its own prompt and its four tools.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``context`` (tokens that the model holds),
    ``output`` (most tokens of an answer), ``reasoning`` (the model is said to reason), ``settings`` (of its
    ``settings.json``), ``args`` (further arguments).
    """

    name, pin = "pi", VERSION
    layers = (NODE, Layer("pi", npm=(f"@earendil-works/pi-coding-agent@{VERSION}",)))
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_APIS), "context": int, "output": int, "reasoning": bool, "settings": dict, "args": list,
    }  # fmt: skip
    records = "sessions"

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config = request.config
        dialect = config.get("dialect", "chat")
        model = {
            "id": request.model, "name": request.model, "reasoning": config.get("reasoning", False), "input": ["text"],
            "contextWindow": config.get("context", 131072), "maxTokens": config.get("output", 16384),
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }  # fmt: skip
        provider = {
            "baseUrl": request.base_url + ("" if dialect == "anthropic" else "/v1"), "api": _APIS[dialect],
            "apiKey": request.api_key, "models": [model],
        }  # fmt: skip
        files = {"models.json": json.dumps({"providers": {_PROVIDER: provider}})}
        if "settings" in config:
            files["settings.json"] = json.dumps(config["settings"])
        argv = [
            program("pi", "pi"), "-p", "--mode", "json", "--provider", _PROVIDER, "--model", request.model,
            "--session-dir", f"{home}/{self.records}", *config.get("args", ()),
        ]  # fmt: skip
        env = {"PI_OFFLINE": "1", "PI_CODING_AGENT_DIR": home}
        return Launch(argv, env, files, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: it exits with 0 whatever happened, so the last answer in its session file decides."""
        log, turns, last = ToolLog(), 0, dict[str, Any]()
        for facts in json_lines(*left.records):
            message = inner(facts, "message")
            if message.get("role") == "assistant":
                last = message
                turns += message.get("stopReason") not in _BROKEN
            _take(message, facts.get("timestamp"), log)
        done = last.get("stopReason") == "stop"
        limit = Stop.FORMAT if last.get("stopReason") == "length" else None
        text = joined_text(last.get("content"))
        words = str(last.get("errorMessage") or last.get("stopReason") or "")
        native = left.records[0] if left.records else None
        return Reading(done, turns, text if done else None, log.events, native, limit, "" if done else words)


_BROKEN = ("error", "aborted")


def _take(message: Mapping[str, Any], at: Any, log: ToolLog) -> None:
    if message.get("role") == "toolResult":
        failed = "the tool reports an error" if message.get("isError") else None
        log.answered(message.get("toolCallId"), joined_text(message.get("content")), error=failed, at=at)
    elif message.get("role") == "assistant":
        for part in objects(message.get("content")):
            if part.get("type") == "toolCall":
                log.asked(
                    part.get("id"), part.get("name"), part.get("arguments"), answer=message.get("responseId"), at=at
                )
