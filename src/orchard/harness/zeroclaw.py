"""ZeroClaw: one ``zeroclaw agent -m`` in the sandbox, over chat completions or responses; it never streams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from orchard.core.errors import MachineUnfit
from orchard.harness import zeroclaw_build
from orchard.harness.inside import Inside, Launch, Left, Reading, program
from orchard.harness.layers import Layer, build, built
from orchard.harness.native import ToolLog, arguments_of, inner, json_lines, merged, objects
from orchard.harness.options import Kind
from orchard.harness.protocol import HarnessRequest, Stop, ToolEvent
from orchard.harness.toml import document

_NAME, _LOG = "orchard", "trace.jsonl"
_APIS = {"chat": "chat_completions", "responses": "responses"}


class ZeroClaw(Inside):
    """ZeroClaw with its own prompt and its 44 tools, without limits on what they touch.

    Options: ``dialect`` (``chat`` or ``responses``), ``context`` (tokens of context: beyond, it leaves out older turns
    without a word; a run is one turn), ``native_tools`` (false: tools are told and called in text), ``settings``
    (further settings of its ``config.toml``), ``args`` (further arguments).
    """

    name, pin = "zeroclaw", zeroclaw_build.VERSION
    needs = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_APIS), "context": int, "native_tools": bool, "settings": dict, "args": list,
    }  # fmt: skip
    records = "state"

    async def tools(self) -> Sequence[str]:
        """See ``Harness.tools``.

        Raises:
            MachineUnfit: it has not been built.
        """
        if not zeroclaw_build.program().is_file():
            hint = f"build it once, in 12 minutes: `make harness-zeroclaw`, or `python -m {zeroclaw_build.__name__}`"
            raise MachineUnfit(f"ZeroClaw {self.pin} is built from its source, and is not yet", hint=hint)
        return [await build(_layer())]

    async def installed(self) -> bool:
        """See ``Harness.installed``: it was built, and its layer too."""
        return built(_layer())

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """See ``Inside.launch``."""
        config = request.config
        argv = [
            program("zeroclaw", "zeroclaw"), "--config-dir", home, "agent", "-a", "main", *config.get("args", ()),
            f"--message={request.instruction}",
        ]  # fmt: skip
        trace = f"{home}/{self.records}/{_LOG}"
        kept = {
            "log_persistence": "full",
            "log_persistence_path": trace,
            "log_tool_io": "full",
            "log_llm_request_payload": "full",
        }
        settings = merged({**_settings(request), "observability": kept}, config.get("settings", {}))
        return Launch(argv, {}, {"config.toml": document({"schema_version": 3, **settings})})

    def read(self, left: Left) -> Reading:
        """See ``Inside.read``: the last answer of the model's in its log decides; it calls tools until it is done.

        A thread that nobody waits for writes the log, so its tail may be lost; then what was printed decides.
        """
        trace = next((path for path in left.records if path.name == _LOG), None)
        told = list(json_lines(trace)) if trace else []
        calls = _Calls({one["trace_id"]: one for facts in told if (one := _request(facts))})
        turns, last, spent = 0, dict[str, Any](), set[Any]()
        for facts in told:
            said, event = inner(facts, "attributes"), inner(facts, "event")
            if facts.get("message") == "tool_loop_exhausted":
                spent.add(said.get("trace_id"))
            elif facts.get("message") == "llm_response":
                last = {**said, "outcome": event.get("outcome")}
                turns += event.get("outcome") == "success"
            elif event.get("category") == "tool":
                calls.take(facts, said)
        done = last.get("outcome") == "success" and last.get("parsed_tool_calls") == 0
        limit = Stop.TURNS if last.get("trace_id") in spent else None
        text = str(last.get("raw_response") or "") if done else None
        amid_turns = not last or (last["outcome"] == "success" and not done)
        if limit is None and amid_turns and (words := _printed(left)):
            done, text = True, words
        return Reading(done, turns, text, calls.events, trace, limit)


def _printed(left: Left) -> str:
    """Return its last words, which are all that it prints, if it ended well; else nothing."""
    ended_well = left.result.exit_code == 0 and not left.result.timed_out
    return left.stdout.read_text(errors="replace").strip() if ended_well else ""


def _layer() -> Layer:
    return Layer("zeroclaw", programs={"zeroclaw": zeroclaw_build.program()})


def _request(facts: Mapping[str, Any]) -> dict[str, Any]:
    said = inner(facts, "attributes")
    return said if facts.get("message") == "llm_request" and isinstance(said.get("trace_id"), str) else {}


class _Calls:
    """Its tool calls: begins and ends, which name tools alone, and their ids, which its last requests name.

    Those of one tool begin, and end, in the order in which the model asked for them.
    """

    def __init__(self, requests: Mapping[str, Mapping[str, Any]]) -> None:
        self._ids: dict[tuple[Any, Any], list[str]] = {}
        self._begun: dict[tuple[Any, Any], list[str]] = {}
        self._log, self._number = ToolLog(), 0
        for turn, request in requests.items():
            for message in objects(_json(request.get("request_messages"))):
                for call in objects(inner({"of": _json(message.get("content"))}, "of").get("tool_calls")):
                    if message.get("role") == "assistant" and isinstance(call.get("id"), str):
                        self._ids.setdefault((turn, call.get("name")), []).append(call["id"])

    def take(self, facts: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        """Take a line of the log on a tool."""
        which, at = (said.get("trace_id"), said.get("tool")), facts.get("@timestamp")
        if facts.get("message") == "tool_call_start":
            self._number += 1
            key, ids = str(self._number), self._ids.get(which, [])
            self._begun.setdefault(which, []).append(key)
            call = ids.pop(0) if ids else ""
            self._log.asked(call, said.get("tool"), arguments_of(said.get("arguments")), at=at, key=key)
        elif facts.get("message") == "tool_call_result" and (begun := self._begun.get(which)):
            error = str(said["error_reason"]) if said.get("error_reason") else None
            self._log.answered(begun.pop(0), str(said.get("output") or ""), error=error, at=at)

    @property
    def events(self) -> Sequence[ToolEvent]:
        """All calls so far."""
        return [replace(event, tool_call_id=event.tool_call_id or None) for event in self._log.events]


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return None


def _settings(request: HarnessRequest) -> dict[str, Any]:
    config = request.config
    provider = {
        "uri": f"{request.base_url}/v1", "api_key": request.api_key, "model": request.model,
        "wire_api": _APIS[config.get("dialect", "chat")], "native_tools": config.get("native_tools", True),
    }  # fmt: skip
    risk = {
        "level": "full", "workspace_only": False, "allowed_commands": ["*"], "allowed_roots": ["/"],
        "block_high_risk_commands": False, "require_approval_for_medium_risk": False,
    }  # fmt: skip
    runtime = {
        "agentic": True, "max_actions_per_hour": 1_000_000, "max_tool_iterations": request.limits.turns,
        "shell_timeout_secs": int(request.limits.command_seconds), "memory_recall_limit": 0,
        "max_context_tokens": config.get("context", 131072), "max_cost_per_day_cents": 1_000_000_000,
    }  # fmt: skip
    agent = {
        "model_provider": f"custom.{_NAME}", "risk_profile": _NAME, "runtime_profile": _NAME,
        "workspace": {"path": request.workdir, "unrestricted_filesystem": True},
    }  # fmt: skip
    return {
        "providers": {"models": {"custom": {_NAME: provider}}}, "risk_profiles": {_NAME: risk},
        "runtime_profiles": {_NAME: runtime}, "agents": {"main": agent},
        "reliability": {"provider_retries": 8, "provider_backoff_ms": 1000},
    }  # fmt: skip
