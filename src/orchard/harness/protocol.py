"""The seam of the harness room: an instruction, a sandbox and a base URL go in, how it ended comes out.

A harness knows neither the gateway nor the tasks. Adding one is a file that fulfils ``Harness`` and a line in
``orchard.harness.registry``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from orchard.sandbox import Sandbox

SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of a command's output that ends a bash-tool loop (the convention of the SWE-agent family)."""


class Stop(StrEnum):
    """Why a harness ended. Each but ``FAILED`` is an outcome of the model's, and is graded."""

    SUBMITTED = "submitted"  # the agent said that it is done
    TURNS = "turns"  # the turn limit
    TIME = "time"  # the wall-time limit; the sandbox's state is kept and graded
    BUDGET = "budget"  # the gateway's session budget
    CONTEXT = "context"  # the model's context is full
    FORMAT = "format"  # the model gave no usable answer, several times in a row
    FAILED = "failed"  # the harness or what it stands on broke: infrastructure, retried, never scored


@dataclass(frozen=True)
class HarnessLimits:
    """Bounds of one run."""

    turns: int = 50
    seconds: float = 1800.0
    command_seconds: float = 120.0


@dataclass(frozen=True)
class HarnessRequest:
    """What one run gets."""

    instruction: str
    box: Sandbox
    workdir: str
    """Folder in the sandbox in which the agent works."""
    base_url: str
    """Of the model endpoint, without ``/v1``, valid where the harness is placed: on this machine when ``beside``,
    in the sandbox (at the end of a reverse tunnel) when ``inside``."""
    api_key: str = field(repr=False)
    model: str
    scratch: Path
    """A private, empty folder on this machine for the harness's own files."""
    limits: HarnessLimits = HarnessLimits()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of this harness, as ``Harness.check`` takes them."""
    last_error: Callable[[], str | None] = field(default=lambda: None, repr=False)
    """Returns the code (``budget_exceeded``, ``context_length_exceeded`` …) of the error that the model endpoint
    answered last with; None where it has answered a call since, or nobody knows."""


@dataclass(frozen=True)
class ToolEvent:
    """One command or tool call that the harness made in the sandbox."""

    call_id: str | None
    """Id of the model's answer that asked for it, where known."""
    name: str
    arguments: Mapping[str, Any]
    output: str
    exit_code: int | None
    seconds: float
    error: str | None = None
    tool_call_id: str | None = None
    """Id of the tool call in that answer, where known."""


@dataclass(frozen=True)
class HarnessResult:
    """How one run ended."""

    stop: Stop
    detail: str = ""
    submission: str | None = None
    """What the agent handed in as text, if anything. A patch is taken from the sandbox, not from here."""
    turns: int = 0
    events: Sequence[ToolEvent] = ()
    native_trajectory: Path | None = None
    """The harness's own trajectory file, where it writes one."""


class Harness(Protocol):
    """Drives one agent program."""

    @property
    def name(self) -> str:
        """Registry name."""
        ...

    @property
    def placement(self) -> Literal["inside", "beside"]:
        """``inside`` the sandbox, or ``beside`` it with tools that act only through the sandbox."""
        ...

    @property
    def needs(self) -> Sequence[str]:
        """Programs that the image must have on its PATH (``sh``, ``git`` …); looked for before the run."""
        ...

    def check(self, config: Mapping[str, Any]) -> None:
        """Return if ``config`` are options that this harness takes; asked before the first rollout.

        Raises:
            InvalidArgument: they are not.
        """
        ...

    async def version(self) -> str:
        """Return the version of the agent program."""
        ...

    async def install(self) -> None:
        """Make the program available on this machine, once; quick when it is.

        Raises:
            MachineUnfit: it cannot be had here; the hint says how.
        """
        ...

    async def installed(self) -> bool:
        """Return whether ``install`` would find everything made."""
        ...

    async def tools(self) -> Sequence[str]:
        """Return the tool layers (``NAME@sha256:…``) that its sandboxes get, made by ``install`` or now.

        Raises:
            MachineUnfit: they cannot be had here; the hint says how.
        """
        ...

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the agent until it ends; cancelling stops everything it started.

        What the model did is in the result; an exception is infrastructure.
        """
        ...

    async def close(self) -> None:
        """End what it keeps between runs, if anything; it may be used again."""
        ...
