"""The part of OpenHands' driver that runs in its own environment, loaded by ``beside/child.py``; never imported here.

The agent is OpenHands' own: prompts, loop, condenser, terminal sessions and editor. What they touch is the sandbox's:
a terminal is a shell there, and the editor works on a copy of the one file that it is asked for, which is written back.

Asked of the parent, ``{"do": …}``: ``open`` (``env``) -> ``{"terminal": id}``; ``type`` (``terminal``, ``data``);
``read`` (``terminal``) -> ``{"data", "ended"}``; ``close`` (``terminal``); ``look`` (``path``) -> ``{"kind": "file",
"data"}``, ``{"kind": "folder", "entries": [[name, is a folder]]}``, ``{"kind": "missing", "parent": is there}`` or
``{"kind": "refused", "why"}``; ``write`` (``path``, ``data``) -> ``{}`` or ``{"why"}``. Data is base64.
"""
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openhands.sdk import LLM, Agent, Conversation
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.llm import llm as transport
from openhands.sdk.tool import register_tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.preset.default import get_default_condenser, get_default_tools, register_builtins_agents
from openhands.tools.terminal import TerminalTool, impl
from openhands.tools.terminal.terminal.terminal_session import TerminalSession

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_editor import SandboxEditor
from sandbox_terminal import SandboxTerminal


class Hands:
    """What the tools of this process need: there is one run in it."""

    bridge: Any
    workdir: str


class SandboxTerminalTool(TerminalTool):
    """OpenHands' terminal in the sandbox."""

    name = "terminal"

    @classmethod
    def create(cls, conv_state: Any, **_: Any) -> Any:
        """Return the tool for one agent: it has a shell of its own."""
        executor = impl.TerminalExecutor(Hands.workdir, terminal_type="subprocess")
        there = SimpleNamespace(workspace=SimpleNamespace(working_dir="/"))  # it asks this machine for the folder
        return super().create(there, executor=executor)


class SandboxFileEditorTool(FileEditorTool):
    """OpenHands' editor for files of the sandbox."""

    name = "file_editor"

    @classmethod
    def create(cls, conv_state: Any) -> Any:
        """Return the tool for one agent: it has a history of its own."""
        there = SimpleNamespace(workspace=SimpleNamespace(working_dir=Hands.workdir), agent=conv_state.agent)
        executor = SandboxEditor(Hands.bridge, Hands.workdir)
        return [tool.set_executor(executor) for tool in super().create(there)]


def session(work_dir: str, no_change_timeout_seconds: int | None = None, **more: Any) -> TerminalSession:
    """Return OpenHands' session on a terminal of the sandbox."""
    terminal = SandboxTerminal(Hands.bridge, work_dir, more.get("env"))
    terminal.session = TerminalSession(terminal, no_change_timeout_seconds)
    return terminal.session


def run(bridge: Any) -> None:
    """Run one job."""
    job = bridge.receive()
    tempfile.tempdir = job["home"]
    Hands.bridge, Hands.workdir = bridge, job["workdir"]
    llm = LLM(**job["llm"])
    condenser = get_default_condenser(llm.model_copy(update={"usage_id": "condenser"}))
    if job["subagents"]:
        register_builtins_agents(enable_browser=False)
    agent = Agent(
        llm=llm, tools=get_default_tools(enable_browser=False, enable_sub_agents=bool(job["subagents"])),
        system_prompt_kwargs={"cli_mode": True}, tool_concurrency_limit=job["subagents"] or 1,
        condenser=None if job["condenser"] is None else condenser.model_copy(update=job["condenser"]),
    )  # fmt: skip
    conversation = Conversation(
        agent, workspace=job["workspace"], persistence_dir=job["persistence"], visualizer=None,
        max_iteration_per_run=job["turns"], token_callbacks=[lambda _: None] if llm.stream else None,
    )  # fmt: skip
    conversation.send_message(job["task"])
    try:
        conversation.run()
    except ConversationRunError as error:  # its last event says what it was
        print(error)  # noqa: T201 - into the run's log


def telling_retries(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return litellm's ``ask``, which says of a request that has failed before that it is sent again, as clients do."""
    failed = set[int]()

    def telling(**asked: Any) -> Any:
        what = hash(repr(asked.get("messages") or asked.get("input")))
        if what in failed:
            asked["extra_headers"] = {**(asked.get("extra_headers") or {}), "x-stainless-retry-count": "1"}
        try:
            return ask(**asked)
        except Exception:
            failed.add(what)
            raise

    return telling


def make_runner() -> Callable[[Any], None]:
    """Return what runs one job; OpenHands has been imported by now."""
    transport.litellm_completion = telling_retries(transport.litellm_completion)
    transport.litellm_responses = telling_retries(transport.litellm_responses)
    impl.create_terminal_session = session
    register_tool("terminal", SandboxTerminalTool)
    register_tool("file_editor", SandboxFileEditorTool)
    return run
