"""The built-in loop: a model, one tool ``bash``, a fresh shell for each command, a marker that ends it.

The history is append-only: every request extends the one before, so a recorded rollout is one branch.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchard.core.errors import DeadlineExceeded, InvalidArgument
from orchard.harness.endpoint import BudgetSpent, ContextFull, ask, open_client
from orchard.harness.protocol import SUBMIT_MARKER, HarnessRequest, HarnessResult, Stop, ToolEvent
from orchard.harness.registry import check_options
from orchard.harness.shell import Shell

if TYPE_CHECKING:
    from openai import AsyncOpenAI

VERSION = "1"
FORMAT_ERRORS = 3
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command and read its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
SYSTEM = "You are a careful software engineer. You act only through the tool `bash`."
FIRST = f"""{{instruction}}

You work in {{workdir}}. Every answer calls the tool `bash` at least once. Each command runs in a fresh shell in that \
folder: `cd` and variables do not last. A command has {{command_seconds:.0f}} s; you have {{turns}} turns.
Look around, change what has to be changed, check that it works. Then end with this command alone:

echo {SUBMIT_MARKER}"""
WRONG = 'Nothing was run: {why}. Call the tool `bash` with the arguments {{"command": "..."}}.'


class BashLoop:
    """Chat completions with one tool, until the agent submits or a limit is reached.

    Options: ``sampling`` (parameters of each request, such as ``temperature``), ``system`` (another system prompt).
    """

    name = "bash-loop"
    placement: Literal["beside"] = "beside"
    needs: Sequence[str] = ()

    def check(self, config: Mapping[str, Any]) -> None:
        """See ``Harness.check``."""
        check_options(self.name, config, {"sampling", "system"})
        if not isinstance(config.get("system", ""), str):
            raise InvalidArgument("bash-loop: system must be text", field="config")

    async def version(self) -> str:
        """Return the version of the loop; it changes with its prompts and rules."""
        return VERSION

    async def install(self) -> None:
        """Import the client now, in a thread: it takes a second, in which the event loop would stand still."""
        await asyncio.to_thread(importlib.import_module, "openai")

    async def installed(self) -> bool:
        """See ``Harness.installed``."""
        return True

    async def tools(self) -> Sequence[str]:
        """Nothing of it is inside but its commands."""
        return ()

    async def close(self) -> None:
        """Nothing is kept between runs."""

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the loop; see ``Harness.run``."""
        self.check(request.config)
        async with open_client(request.base_url, request.api_key) as client:
            return await _Run(request, client).loop()


class _Run:
    def __init__(self, request: HarnessRequest, client: AsyncOpenAI) -> None:
        self._request, self._client = request, client
        self._shell = Shell(request.box, request.workdir)
        self._events: list[ToolEvent] = []
        self._turns = 0
        self._until = asyncio.get_running_loop().time() + request.limits.seconds
        first = FIRST.format(
            instruction=request.instruction, workdir=request.workdir, turns=request.limits.turns,
            command_seconds=request.limits.command_seconds,
        )  # fmt: skip
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": request.config.get("system", SYSTEM)},
            {"role": "user", "content": first},
        ]

    async def loop(self) -> HarnessResult:
        wrong = 0
        try:
            while self._turns < self._request.limits.turns:
                async with asyncio.timeout_at(self._until):
                    answer = await self._answer()
                self._turns += 1
                ran, submission = await self._act(answer)
                if submission is not None:
                    return self._result(Stop.SUBMITTED, submission=submission)
                wrong = 0 if ran else wrong + 1
                if wrong == FORMAT_ERRORS:
                    return self._result(Stop.FORMAT, f"{FORMAT_ERRORS} answers in a row without a usable command")
        except DeadlineExceeded:  # also a TimeoutError, but the sandbox's: trouble, not the end of the agent's time
            raise
        except TimeoutError:
            return self._result(Stop.TIME, f"{self._request.limits.seconds:g} s of wall time are used up")
        except BudgetSpent as error:
            return self._result(Stop.BUDGET, str(error))
        except ContextFull as error:
            return self._result(Stop.CONTEXT, str(error))
        return self._result(Stop.TURNS, f"{self._turns} turns are used up")

    async def _answer(self) -> Mapping[str, Any]:
        body = {"model": self._request.model, "messages": self._messages, "tools": [TOOL]}
        return await ask(self._client, body | dict(self._request.config.get("sampling", {})))

    async def _act(self, answer: Mapping[str, Any]) -> tuple[bool, str | None]:
        """Take one answer into the history and run its commands; return whether one ran, and what was handed in."""
        message = {key: value for key, value in answer["choices"][0]["message"].items() if value is not None}
        self._messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            self._messages.append({"role": "user", "content": WRONG.format(why=_why_none(answer))})
        ran = False
        for call, command, why in _commands(calls):
            if command is None:
                self._reply(call, WRONG.format(why=why))
                continue
            ran = True
            left = self._until - asyncio.get_running_loop().time()
            if left <= 0:
                raise TimeoutError
            seen = await self._shell.run(
                command, timeout=min(self._request.limits.command_seconds, left), call_id=answer.get("id")
            )
            self._events.append(seen.event)
            self._reply(call, seen.shown)
            if seen.submission is not None:
                return True, seen.submission
        return ran, None

    def _reply(self, call: Mapping[str, Any], text: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": text})

    def _result(self, stop: Stop, detail: str = "", submission: str | None = None) -> HarnessResult:
        return HarnessResult(stop, detail, submission, self._turns, tuple(self._events))


def _commands(calls: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None, str]]:
    """Yield each tool call with its command, or with None and what is wrong with it."""
    for call in calls:
        function = call.get("function") or {}
        if function.get("name") != "bash":
            yield call, None, f"there is no tool {function.get('name')!r}"
            continue
        try:
            arguments = json.loads(function.get("arguments") or "")
        except (ValueError, TypeError) as error:  # some servers give an object where text is due
            yield call, None, f"the arguments are not JSON text ({error})"
            continue
        command = arguments.get("command") if isinstance(arguments, dict) else None
        yield call, command if isinstance(command, str) else None, "the argument `command` (text) is missing"


def _why_none(answer: Mapping[str, Any]) -> str:
    if answer["choices"][0].get("finish_reason") == "length":
        return "your answer was cut at the token limit before it called a tool; be brief"
    return "your answer called no tool"
