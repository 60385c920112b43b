"""Claude Code: one ``claude -p`` in the sandbox, over the Anthropic messages dialect, the only one it speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import Layer
from orchard.harness.native import ToolLog, inner, joined_text, json_lines, objects
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop

VERSION = "2.1.332"
_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING",
    "IS_SANDBOX",
)  # fmt: skip
"""What it must not do where there is no network; ``IS_SANDBOX`` lets root skip its permission questions."""
_MODELS = (
    "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip
_VARIABLES = {
    "context": "CLAUDE_CODE_MAX_CONTEXT_TOKENS", "output": "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "compact_at": "CLAUDE_CODE_AUTO_COMPACT_WINDOW",
}  # fmt: skip
_EXIT = re.compile(r"Exit code (\d{1,3})\b")


class ClaudeCode(Inside):
    """Claude Code with its own prompts and tools.

    Options: ``bare`` (three tools and a prompt of a few lines, for small models), ``context`` (tokens that the model
    holds), ``output`` (most tokens of an answer), ``compact_at`` (tokens at which it compacts; it takes 100,000 and
    more), ``args`` (further arguments), ``env`` (further variables).
    """

    name, pin = "claude-code", VERSION
    layers = (
        Layer(
            "claude-code", npm=(f"@anthropic-ai/claude-code@{VERSION}",),
            links={"claude": "@anthropic-ai/claude-code-linux-*/claude"},
        ),
    )  # fmt: skip
    needs = ("bash",)
    options: ClassVar[Mapping[str, Kind]] = {
        "bare": bool, "context": int, "output": int, "compact_at": int, "args": list, "env": dict,
    }  # fmt: skip
    records = "projects"

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config, milliseconds = request.config, str(int(request.limits.command_seconds * 1000))
        env = {
            "CLAUDE_CONFIG_DIR": home, "CLAUDE_CODE_TMPDIR": f"{home}/tmp", "ANTHROPIC_BASE_URL": request.base_url,
            "ANTHROPIC_AUTH_TOKEN": request.api_key,
            "ANTHROPIC_API_KEY": "", "BASH_DEFAULT_TIMEOUT_MS": milliseconds, "BASH_MAX_TIMEOUT_MS": milliseconds,
            **dict.fromkeys(_QUIET, "1"), **dict.fromkeys(_MODELS, request.model),
            **{variable: str(config[option]) for option, variable in _VARIABLES.items() if option in config},
            **config.get("env", {}),
        }  # fmt: skip
        argv = [
            program("claude-code", "claude"), "-p", "--model", request.model, "--dangerously-skip-permissions",
            "--output-format", "stream-json", "--verbose", "--max-turns", str(request.limits.turns),
            *(["--bare"] if config.get("bare") else []), *config.get("args", ()),
        ]  # fmt: skip
        return Launch(argv, env, {"tmp/.keep": ""}, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: its last line says how it ended, its session files what was done."""
        end: dict[str, Any] = {}
        for event in json_lines(left.stdout):
            if event.get("type") == "result":
                end = event
        log, answers = ToolLog(), set[str]()
        for facts in json_lines(*left.records):
            _take(facts, log, answers)
        done = end.get("subtype") == "success" and not end.get("is_error")
        said = str(end.get("result") or "")
        main = [path for path in left.records if "subagents" not in path.parts]
        return Reading(
            done, len(answers), said if done else None, log.events, main[0] if main else None,
            limit=Stop.TURNS if end.get("subtype") == "error_max_turns" else None,
            words="" if done else said or str(end.get("subtype") or ""),
        )  # fmt: skip


def _take(facts: Mapping[str, Any], log: ToolLog, answers: set[str]) -> None:
    """Take one line of a session file: an answer of the model's, or results of tools."""
    message, at = inner(facts, "message"), facts.get("timestamp")
    if facts.get("type") == "assistant" and isinstance(message.get("id"), str) and not facts.get("isApiErrorMessage"):
        answers.add(message["id"])
    for part in objects(message.get("content")):
        if part.get("type") == "tool_use":
            log.asked(part.get("id"), part.get("name"), part.get("input"), answer=message.get("id"), at=at)
        elif part.get("type") == "tool_result":
            text, failed = joined_text(part.get("content")), bool(part.get("is_error"))
            found = _EXIT.match(text) if failed else None
            log.answered(
                part.get("tool_use_id"), text, exit_code=int(found[1]) if found else None,
                error="the tool reports an error" if failed else None, at=at,
            )  # fmt: skip
