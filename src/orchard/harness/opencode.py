"""opencode: one ``opencode run`` in the sandbox, over whichever of the three dialects is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import Layer
from orchard.harness.native import ToolLog, inner, json_lines, objects
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest

VERSION = "1.18.33"
_PROVIDER = "orchard"
_ADAPTERS = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "anthropic": "@ai-sdk/anthropic"}
"""All three come with the program."""
_QUIET = ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD")
_FOLDERS = ("CONFIG", "DATA", "CACHE", "STATE")
_SESSION = re.compile(r"ses_[A-Za-z0-9]+")
_SESSIONS = 100
"""Most sessions, its own and its sub-agents', that are exported."""
_EXPORT_SECONDS = 60.0


class OpenCode(Inside):
    """opencode with its own prompts and tools; it asks for no title, since it is given one.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``context`` (tokens that the model holds),
    ``output`` (most tokens of an answer), ``snapshot`` (keep a git snapshot of each step, off by default),
    ``settings`` (of its ``opencode.json``), ``args`` (further arguments).
    """

    name, pin = "opencode", VERSION
    layers = (
        Layer(
            "opencode", npm=(f"opencode-ai@{VERSION}",), links={"opencode": "opencode-linux-*/bin/opencode"}
        ),
    )  # fmt: skip
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

    async def collect(self, request: HarnessRequest, launch: Launch, home: str, stdout: Path) -> Sequence[Path]:
        """See ``Inside.collect``: its records are a database, of which it exports one session after another."""
        records, waiting = (
            list[Path](),
            [str(event["sessionID"]) for event in json_lines(stdout) if "sessionID" in event],
        )
        known = set[str]()
        while waiting and len(known) < _SESSIONS:
            session = waiting.pop(0)
            if session in known or not _SESSION.fullmatch(session):
                continue
            known.add(session)
            result = await request.box.run(
                [launch.argv[0], "export", session], timeout=_EXPORT_SECONDS, cwd=request.workdir, env=launch.env,
                output_limit=256 << 20,
            )  # fmt: skip
            record = request.scratch / f"{session}.json"
            record.write_bytes(result.stdout)
            records.append(record)
            waiting += [str(inner(part, "state", "metadata").get("sessionId")) for _, part in _parts(record)]
        return records

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: it may exit with 1 after it has recovered, so its last answer decides."""
        log, turns = ToolLog(), 0
        for record in left.records:
            for message, part in _parts(record):
                turns += part.get("type") == "step-finish" and message.get("role") == "assistant"
                if part.get("type") == "tool":
                    _take(part, log)
        main = left.records[0] if left.records else None
        last = _last_answer(main)
        error = inner(last, "error")
        done = last.get("finish") == "stop" and not error
        texts = [str(part.get("text", "")) for message, part in _parts(main) if message == last and "text" in part]
        words = "" if done else json.dumps(error or last.get("finish"))
        return Reading(done, turns, texts[-1] if done and texts else None, log.events, main, words=words)


def _messages(record: Path | None) -> list[dict[str, Any]]:
    try:
        facts = json.loads(record.read_bytes()) if record else {}
    except ValueError:  # cut, or no export at all
        facts = {}
    return objects(facts.get("messages")) if isinstance(facts, dict) else []


def _parts(record: Path | None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for message in _messages(record):
        for part in objects(message.get("parts")):
            yield inner(message, "info"), part


def _last_answer(record: Path | None) -> dict[str, Any]:
    infos = [inner(message, "info") for message in _messages(record)]
    return next((info for info in reversed(infos) if info.get("role") == "assistant"), {})


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
