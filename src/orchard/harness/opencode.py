"""opencode: one ``opencode run`` in the sandbox, over whichever of the three dialects is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchard.harness.database import rows
from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import Layer
from orchard.harness.native import ToolLog, arguments_of, inner
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop

VERSION = "1.18.33"
_RIPGREP = "1.18.0"
"""Of the package with the program ``rg``, by which its tools search; it would fetch one where there is none."""
_PROVIDER = "orchard"
_ADAPTERS = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "anthropic": "@ai-sdk/anthropic"}
"""All three come with the program."""
_QUIET = ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD")
_FOLDERS = ("CONFIG", "DATA", "CACHE", "STATE")
_ASKED = ("edit", "bash", "webfetch", "read", "external_directory", "doom_loop")
"""What it would ask a person about, and end where nobody answers: files outside the work tree, a ``.env``, a call made
three times."""
_DATABASE = "opencode.db"
_QUERY = """
SELECT s.id AS session, s.parent_id AS parent, m.id AS id, m.data AS message, p.data AS part
FROM message m JOIN session s ON s.id = m.session_id LEFT JOIN part p ON p.message_id = m.id
ORDER BY m.time_created, m.id, p.id
"""


class OpenCode(Inside):
    """opencode with its own prompts and tools; it asks for no title, since it is given one.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``context`` (tokens that the model holds),
    ``output`` (most tokens of an answer), ``snapshot`` (keep a git snapshot of each step, off by default),
    ``settings`` (of its ``opencode.json``), ``args`` (further arguments).
    """

    name, pin = "opencode", VERSION
    layers = (
        Layer(
            "opencode", npm=(f"opencode-ai@{VERSION}", f"@vscode/ripgrep@{_RIPGREP}"),
            links={"opencode": "opencode-linux-*/bin/opencode", "rg": "@vscode/ripgrep-linux-*/bin/rg"},
        ),
    )  # fmt: skip
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_ADAPTERS), "context": int, "output": int, "snapshot": bool, "settings": dict, "args": list,
    }  # fmt: skip

    records = "data/opencode"
    names = f"{_DATABASE}*"

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
            "permission": dict.fromkeys(_ASKED, "allow"), **config.get("settings", {}),
        }  # fmt: skip
        env = {
            **dict.fromkeys(_QUIET, "1"), "OPENCODE_CONFIG": f"{home}/opencode.json",
            **{f"XDG_{folder}_HOME": f"{home}/{folder.lower()}" for folder in _FOLDERS},
        }  # fmt: skip
        argv = [program("opencode", "opencode"), "run", "--format", "json", "--title", "run", *config.get("args", ())]
        return Launch(argv, env, {"opencode.json": json.dumps(settings)}, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: it may exit with 1 after it has recovered, so the last answer in its records decides."""
        log, turns, last, said = ToolLog(), 0, dict[str, Any](), ""
        native = left.stdout.with_name("trajectory.jsonl")
        with native.open("w") as file:
            for event in _events(left.records):
                file.write(json.dumps(event) + "\n")
                message, part = event["message"], event["part"]
                turns += part.get("type") == "step-finish"
                if part.get("type") == "tool":
                    _take(part, log)
                elif event["parent"] is None and message.get("role") == "assistant":
                    last = message
                    said = str(part["text"]) if part.get("type") == "text" and "text" in part else said
        error, finish = inner(last, "error"), last.get("finish")
        done = finish == "stop" and not error
        limit = Stop.FORMAT if finish == "length" and not error else None
        words = "" if done else json.dumps(error or finish)
        return Reading(done, turns, said if done else None, log.events, native if turns else None, limit, words)


def _events(records: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield each part of each message of its sessions, its own (without a parent) and its sub-agents', in order."""
    for row in (row for path in records if path.name == _DATABASE for row in rows(path, _QUERY)):
        yield {**row, "message": arguments_of(row["message"]), "part": arguments_of(row["part"] or "{}")}


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
