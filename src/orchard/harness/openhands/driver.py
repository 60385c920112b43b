"""Runs OpenHands in a process and session of its own for each run, and reads the events that it has kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from orchard.harness.beside.environment import Environment
from orchard.harness.beside.server import LOG, ForkServer, HarnessBroke
from orchard.harness.endpoint import EndpointFailed
from orchard.harness.inside import ENDS
from orchard.harness.native import ToolLog, arguments_of, inner, joined_text
from orchard.harness.openhands.bridge import Tools
from orchard.harness.options import Kind, check_kinds
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop

VERSION = "1.58.2"
OPENHANDS = Environment(
    "openhands-sdk", VERSION, Path(__file__).with_name("constraints.txt"), (f"openhands-tools=={VERSION}",), (3, 12)
)
VARIABLES = {
    "OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1",
    "LITELLM_TELEMETRY": "False",
}  # fmt: skip
_STOPS = {"MaxIterationsReached": Stop.TURNS, "LLMContextWindowExceedError": Stop.CONTEXT}
"""Code of the error that ended a conversation -> why it ended, where that is the model's doing."""
_PROVIDERS = {"chat": "openai", "responses": "openai", "anthropic": "anthropic"}


class OpenHands:
    """The OpenHands agent with its own prompts, loop, terminal, editor and condenser.

    Options: ``dialect`` (``chat``, ``responses`` or ``anthropic``), ``stream`` (answers are streamed), ``llm`` (further
    settings of its ``LLM``, such as ``temperature``, ``reasoning_effort``, ``num_retries``, ``litellm_extra_body``),
    ``condense_at`` (events at which it condenses; ``condenser`` false: never), ``subagents`` (it may start others: so
    many at once).
    """

    name = "openhands"
    placement: Literal["beside"] = "beside"
    needs = ("bash",)
    options: ClassVar[Mapping[str, Kind]] = {
        "dialect": tuple(_PROVIDERS), "stream": bool, "llm": dict, "condenser": bool, "condense_at": int,
        "subagents": int,
    }  # fmt: skip

    def __init__(self) -> None:
        self._server = ForkServer(OPENHANDS, Path(__file__).parent / "theirs" / "runner.py", VARIABLES)

    def check(self, config: Mapping[str, Any]) -> None:
        """See ``Harness.check``."""
        check_kinds(self.name, config, self.options)

    async def version(self) -> str:
        """Return the pinned version."""
        return VERSION

    async def install(self) -> None:
        """Install it into an environment of its own, once; see ``Harness.install``."""
        await OPENHANDS.install()

    async def installed(self) -> bool:
        """See ``Harness.installed``."""
        return OPENHANDS.installed

    async def tools(self) -> Sequence[str]:
        """Nothing of it is inside but its commands."""
        return ()

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the agent; see ``Harness.run``."""
        self.check(request.config)
        in_time = await self._server.run(Tools(request), _job(request), request.scratch, request.limits.seconds)
        return _result(request, in_time)

    async def close(self) -> None:
        """End the process that runs are forked from."""
        await self._server.close()


def _job(request: HarnessRequest) -> dict[str, Any]:
    config, scratch = request.config, request.scratch
    dialect = config.get("dialect", "chat")
    llm = {
        "model": f"{_PROVIDERS[dialect]}/{request.model}", "usage_id": "agent", "api_key": request.api_key,
        "base_url": request.base_url + ("" if dialect == "anthropic" else "/v1"),
        "api_mode": "responses" if dialect == "responses" else "chat", "stream": config.get("stream", False),
        "input_cost_per_token": 0.0, "output_cost_per_token": 0.0, **config.get("llm", {}),
    }  # fmt: skip
    most = config.get("condense_at")
    condenser = {"max_size": most, "keep_first": min(4, most // 3)} if most else {}
    return {
        "task": request.instruction, "workdir": request.workdir, "llm": llm, "turns": request.limits.turns,
        "home": str(scratch / "home"), "workspace": str(scratch / "workspace"),
        "persistence": str(scratch / "conversations"), "subagents": config.get("subagents", 0),
        "condenser": condenser if config.get("condenser", True) else None,
    }  # fmt: skip


def _result(request: HarnessRequest, in_time: bool) -> HarnessResult:
    kept = _conversations(request.scratch / "conversations")
    status, events = next(iter(kept.values()), ("", []))
    last = next((event for event in reversed(events) if event.get("kind") == "ConversationErrorEvent"), {})
    log, answers, calls = ToolLog(), set[str](), dict[str, str]()
    for _, told in kept.values():
        for event in told:
            _take(event, log, answers, calls)
    stop, words = _verdict(request, status, last) if in_time else (Stop.TIME, "")
    native = request.scratch / "trajectory.json"
    native.write_text(json.dumps({name: {"status": state, "events": told} for name, (state, told) in kept.items()}))
    return HarnessResult(
        stop, words or ("" if in_time else f"{request.limits.seconds:g} s of wall time are used up"),
        _submission(events) if stop is Stop.SUBMITTED else None, len(answers), log.events, native,
    )  # fmt: skip


def _conversations(folder: Path) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Return each conversation's status and events by its id, the first one first; a file cut by a kill is left out."""
    found = dict[str, tuple[str, list[dict[str, Any]]]]()
    for state in sorted(folder.glob("**/base_state.json"), key=lambda path: (len(path.parts), path.stat().st_ctime)):
        events = [facts for path in sorted(state.parent.glob("events/event-*.json")) if (facts := _object(path))]
        found[state.parent.name] = (str(_object(state).get("execution_status") or ""), events)
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _take(event: Mapping[str, Any], log: ToolLog, answers: set[str], calls: dict[str, str]) -> None:
    """Take one event: a tool call, what came of one, or words; ``calls``: tool call -> its last event."""
    if isinstance(answer := event.get("llm_response_id"), str):
        answers.add(answer)
    call, at = event.get("tool_call_id"), event.get("timestamp")
    if event.get("kind") == "ActionEvent":
        key = calls[str(call)] = str(event.get("id"))
        arguments = inner(event, "tool_call").get("arguments")
        log.asked(call, event.get("tool_name"), arguments_of(arguments), answer=answer, at=at, key=key)
    elif call:
        seen = inner(event, "observation")
        text = joined_text(seen.get("content")) or str(event.get("error") or "")
        failed = "the tool reports an error" if event.get("error") or seen.get("is_error") else None
        code = seen.get("exit_code")
        key = event.get("action_id") or calls.get(str(call))
        log.answered(key, text, exit_code=None if code == -1 else code, error=failed, at=at)


def _verdict(request: HarnessRequest, status: str, last: Mapping[str, Any]) -> tuple[Stop, str]:
    """Return why the run ended, and in which words.

    Raises:
        EndpointFailed, HarnessBroke: trouble, which is not the model's doing.
    """
    code, words = str(last.get("code") or ""), str(last.get("detail") or "")
    if status == "finished":
        return Stop.SUBMITTED, ""
    if status == "stuck":
        return Stop.FORMAT, "stuck: it saw itself repeat the same steps"
    told = _STOPS.get(code) or ENDS.get(request.last_error() or "")
    if told:
        return told, words
    if code.startswith("LLM"):
        raise EndpointFailed(f"OpenHands ended with {code}: {words}")
    log = (request.scratch / LOG).read_text("utf-8", "replace")[-1500:]
    raise HarnessBroke(f"OpenHands ended with status {status or 'none'!r} and {code or 'no error'}: {words or log}")


def _submission(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the agent's last words: what it finished with, or its last message."""
    for event in reversed(events):
        if event.get("tool_name") == "finish" and event.get("kind") == "ActionEvent":
            return str(inner(event, "action").get("message") or "")
        if event.get("kind") == "MessageEvent" and event.get("source") == "agent":
            return joined_text(inner(event, "llm_message").get("content"))
    return None
