"""Kimi Code CLI: one ``kimi -p`` in the sandbox, over whichever of its four provider types is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import NODE, Layer
from orchard.harness.native import ToolLog, arguments_of, inner, joined_text, json_lines
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop
from orchard.harness.toml import document

VERSION = "2.1.0"
_NAME = "orchard"
_TYPES = {"chat": "openai", "responses": "openai_responses", "anthropic": "anthropic", "kimi": "kimi"}
_LIMIT = "loop.max_steps_exceeded"


class KimiCode(Inside):
    """The Kimi Code CLI with its own prompt and its 25 tools; nothing is asked of the user.

    Options: ``dialect`` (``chat``, ``responses``, ``anthropic``, or ``kimi``: chat with its maker's fields),
    ``context`` (tokens that the model holds), ``output`` (most tokens of an answer), ``settings`` (further settings of
    its ``config.toml`` by dotted key, as ``loop_control.compaction_trigger_ratio``), ``args`` (further arguments).
    """

    name, pin = "kimi-code", VERSION
    layers = (NODE, Layer("kimi-code", npm=(f"@moonshot-ai/kimi-code@{VERSION}",)))
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_TYPES), "context": int, "output": int, "settings": dict, "args": list,
    }  # fmt: skip
    records = "sessions"

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config = request.config
        dialect = config.get("dialect", "chat")
        settings = {
            "default_model": _NAME, "telemetry": False, "loop_control.max_steps_per_turn": request.limits.turns,
            f"models.{_NAME}": {
                "provider": _NAME, "model": request.model, "max_context_size": config.get("context", 131072),
                **({"max_output_size": config["output"]} if "output" in config else {}),
            },
            f"providers.{_NAME}": {
                "type": _TYPES[dialect], "api_key": request.api_key,
                "base_url": request.base_url + ("" if dialect == "anthropic" else "/v1"),
            },
            **config.get("settings", {}),
        }  # fmt: skip
        argv = [
            program("kimi-code", "kimi"), "--output-format", "stream-json", *config.get("args", ()),
            f"--prompt={request.instruction}",
        ]  # fmt: skip
        env = {
            "KIMI_CODE_HOME": home, "KIMI_CODE_NO_AUTO_UPDATE": "1", "KIMI_DISABLE_TELEMETRY": "1",
            "KIMI_DISABLE_CRON": "1",
        }  # fmt: skip
        return Launch(argv, env, {"config.toml": document(settings)})

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: the last end of a turn in the main agent's file decides, not the exit code."""
        agents = [path for path in left.records if path.name == "wire.jsonl"]
        main = next((path for path in agents if path.parent.name == "main"), None)
        log, turns, said, end = ToolLog(), 0, "", dict[str, Any]()
        for path in agents:
            steps: dict[Any, list[str]] = {}
            for facts in json_lines(path):
                turns += _take(facts, log, steps)
                if path == main and facts.get("type") == "turn.ended":
                    end = facts
                if path == main and (text := _text(inner(facts, "event"))):
                    said = text
        done, error = end.get("reason") == "completed", inner(end, "error")
        limit = Stop.TURNS if error.get("code") == _LIMIT else None
        words = f"{error.get('code', '')}: {error['message']}" if error.get("message") and not done else ""
        return Reading(done, turns, said if done else None, log.events, main, limit, words)


def _take(facts: Mapping[str, Any], log: ToolLog, steps: dict[Any, list[str]]) -> bool:
    """Take one line of an agent's file; return whether it is the end of a step, which names the model's answer."""
    event, at = inner(facts, "event"), facts.get("time")
    kind, step = event.get("type"), event.get("stepUuid")
    if kind == "tool.call":
        key = event.get("uuid")
        log.asked(event.get("toolCallId"), event.get("name"), arguments_of(event.get("args")), at=at, key=key)
        steps.setdefault(step, []).append(str(key))
    elif kind == "tool.result":
        result = inner(event, "result")
        failed = "the tool reports an error" if result.get("isError") else None
        log.answered(event.get("parentUuid"), joined_text(result.get("output")), error=failed, at=at)
    elif kind == "step.end":
        log.came_of(steps.pop(event.get("uuid"), ()), event.get("messageId"))
        return True
    return False


def _text(event: Mapping[str, Any]) -> str:
    part = inner(event, "part")
    return str(part.get("text", "")) if event.get("type") == "content.part" and part.get("type") == "text" else ""
