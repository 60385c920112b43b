"""Commands as values: what is asked for, what became of it, and the bounded view of its output."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from orchard.core.errors import InvalidArgument
from orchard.core.ids import check_key, new_id
from orchard.sandbox.frames import STREAMS, Frame, Kind, StreamName
from orchard.sandbox.types import DEFAULT_OUTPUT_LIMIT, Result, check_seconds, check_text

Command = str | Sequence[str]
"""Text is a script for the sandbox's shell; a sequence is an argv."""
Stdin = bytes | AsyncIterator[bytes] | None
INLINE_STDIN = 1 << 20
_MOST_OUTPUT = 1 << 30


class CommandOptions(TypedDict, total=False):
    """What ``run`` and ``start`` may be given besides the command."""

    cwd: str
    """Folder to run in; the image's WORKDIR by default. A missing one is an error."""
    env: Mapping[str, str]
    """Added to the sandbox's variables."""
    unset_env: Sequence[str]
    """Variables taken away."""
    user: str
    """``name``, ``uid`` or ``uid:gid``; the sandbox's user by default."""
    shell: str
    """Shell for a script, such as ``bash``; the sandbox's by default."""
    merge: bool
    """stdout and stderr on one pipe, in exact order; all arrives as stdout."""
    pty: tuple[int, int]
    """Run on a terminal of (columns, rows); all output arrives as stdout."""
    output_limit: int
    """Bytes of each stream kept in the result: a half from the head, a half from the tail. 1 MiB by default."""
    kill_on_disconnect: bool
    """End the command when the connection that started it breaks. No by default: a new one attaches to it."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a process wrote."""

    stream: StreamName
    data: bytes
    offset: int
    """Position of ``data`` in its stream."""
    lost: int = 0
    """Bytes just before ``offset`` that are no longer kept."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What is known of a process now."""

    id: str
    pid: int | None
    state: Literal["running", "exited"]
    exit_code: int | None
    """None while it runs, and when a signal ended it."""
    signal: str | None
    timed_out: bool
    oom_killed: bool
    cancelled: bool
    duration: float
    """Seconds."""
    stdout_bytes: int
    """All that was written."""
    stderr_bytes: int
    stdout_lost: int
    """Bytes that the spool no longer holds."""
    stderr_lost: int
    argv: tuple[str, ...]
    started_at: str
    """RFC 3339."""
    refused_forks: int = 0
    """Forks that the limit of processes refused, where that can be known."""

    @property
    def running(self) -> bool:
        """True until the main process has ended."""
        return self.state == "running"


def status_of(facts: Mapping[str, Any]) -> ProcessStatus:
    """Return the status that a JSON object of the wire holds."""
    return ProcessStatus(
        id=facts["id"], pid=facts.get("pid"), state=facts["state"], exit_code=facts.get("exit_code"),
        signal=facts.get("signal"), timed_out=bool(facts.get("timed_out")), oom_killed=bool(facts.get("oom_killed")),
        cancelled=bool(facts.get("cancelled")), duration=float(facts.get("duration_s") or 0.0),
        stdout_bytes=facts.get("stdout_bytes") or 0, stderr_bytes=facts.get("stderr_bytes") or 0,
        stdout_lost=facts.get("stdout_lost") or 0, stderr_lost=facts.get("stderr_lost") or 0,
        argv=tuple(facts.get("argv") or ()), started_at=facts.get("started_at") or "",
        refused_forks=facts.get("refused_forks") or 0,
    )  # fmt: skip


def command_body(
    command: Command, timeout: float | None, stdin: Stdin, key: str | None, options: CommandOptions
) -> dict[str, Any]:
    """Return the checked body of ``POST /processes``.

    Raises:
        InvalidArgument: a value that cannot be sent as it is; ``field`` names it.
    """
    body: dict[str, Any] = {"id": check_key(key, "key") if key is not None else new_id("op")}
    if isinstance(command, str):
        body["shell"] = check_text(command, "command")
    else:
        body["argv"] = [check_text(word, "command") for word in command]
        if not body["argv"]:
            raise InvalidArgument("command must not be empty", field="command")
    if timeout is not None:
        body["timeout_s"] = check_seconds(timeout, "timeout")
    if isinstance(stdin, bytes) and len(stdin) <= INLINE_STDIN and not options.get("pty"):
        body["stdin_data"] = base64.b64encode(stdin).decode()
    elif stdin is not None:
        body["stdin"] = "open"
    return body | _options(options)


def _options(options: CommandOptions) -> dict[str, Any]:
    unknown = set(options) - set(CommandOptions.__annotations__)
    if unknown:
        raise InvalidArgument(f"a command has no option {', '.join(sorted(unknown))}", field=min(unknown))
    body: dict[str, Any] = {"output_limit": _output_limit(options.get("output_limit", DEFAULT_OUTPUT_LIMIT))}
    texts = {"cwd": options.get("cwd"), "user": options.get("user"), "shell_path": options.get("shell")}
    body |= {wire: check_text(value, wire.removesuffix("_path")) for wire, value in texts.items() if value is not None}
    if added := options.get("env"):
        body["env"] = {check_text(key, "env"): check_text(value, "env") for key, value in added.items()}
    if removed := options.get("unset_env"):
        body["unset_env"] = [check_text(name, "unset_env") for name in removed]
    if size := options.get("pty"):
        body["pty"] = {"cols": size[0], "rows": size[1]}
    return body | {name: True for name in ("merge", "kill_on_disconnect") if options.get(name)}


def _output_limit(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_OUTPUT:
        raise InvalidArgument(f"output_limit must be 0 to {_MOST_OUTPUT} bytes, not {value!r}", field="output_limit")
    return value


class Bounded:
    """Gathers the bounded view of one process from its frames, across broken connections."""

    def __init__(self) -> None:
        self.offsets: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self._data: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._cut: dict[StreamName, int | None] = {"stdout": None, "stderr": None}

    def take(self, frame: Frame) -> Result | None:
        """Take in a frame; return the result if it is the exit."""
        if frame.kind in STREAMS:
            name = STREAMS[frame.kind]
            self._skip_to(name, frame.offset)
            fresh = frame.payload[self.offsets[name] - frame.offset :]
            self._data[name] += fresh
            self.offsets[name] += len(fresh)
        elif frame.kind == Kind.GAP:
            self._skip_to(*frame.gap())
        elif frame.kind == Kind.EXIT:
            return self._result(status_of(json.loads(frame.payload)))
        return None

    def _skip_to(self, name: StreamName, offset: int) -> None:
        if offset > self.offsets[name]:
            if self._cut[name] is None:
                self._cut[name] = len(self._data[name])
            self.offsets[name] = offset

    def _result(self, status: ProcessStatus) -> Result:
        return Result(
            id=status.id, exit_code=status.exit_code, signal=status.signal, timed_out=status.timed_out,
            oom_killed=status.oom_killed, cancelled=status.cancelled, stdout=bytes(self._data["stdout"]),
            stderr=bytes(self._data["stderr"]), stdout_bytes=status.stdout_bytes, stderr_bytes=status.stderr_bytes,
            stdout_cut=self._cut["stdout"], stderr_cut=self._cut["stderr"], duration=status.duration,
        )  # fmt: skip
