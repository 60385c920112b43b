"""One command of an agent in its sandbox: a fresh shell each time, what it did as facts and as text.

What the *command* did, or why it could not start, is an ``Observation``. What the *sandbox* did (gone, unreachable, a
lost command) is an exception, and so never becomes something that a model reads.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from orchard.core.errors import CommandNotStarted, InvalidArgument
from orchard.core.text import carried
from orchard.harness.protocol import SUBMIT_MARKER, ToolEvent
from orchard.sandbox import CommandOptions, Result, Sandbox

QUIET = {"PAGER": "cat", "MANPAGER": "cat", "GIT_PAGER": "cat", "PIP_PROGRESS_BAR": "off", "TQDM_DISABLE": "1"}
"""Variables that keep programs from paging and from drawing progress."""
SHOWN_BYTES = 10_000
"""Most bytes of one output that a model reads: a half from the head, a half from the tail."""


@dataclass(frozen=True)
class Observation:
    """What one command did."""

    output: str
    """stdout and stderr in their order, bounded by the ``keep`` of ``Shell.run``."""
    exit_code: int | None
    """As a shell counts: 128 + N after signal N; None where nothing ran or the time was up."""
    note: str
    """How it ended, if not by itself; empty otherwise."""
    event: ToolEvent

    @property
    def submission(self) -> str | None:
        """The rest of an output that begins with the submit marker and exited with 0, else None."""
        first, _, rest = self.output.lstrip().partition("\n")
        return rest if self.exit_code == 0 and first.strip() == SUBMIT_MARKER else None

    @property
    def shown(self) -> str:
        """The text that a model reads: how it ended, then the output."""
        return f"[{self.note or f'exit code {self.exit_code}'}]\n{self.output}"


class Shell:
    """Runs an agent's commands in ``workdir`` of one sandbox, by bash where it has one, else by its own shell."""

    def __init__(self, box: Sandbox, workdir: str) -> None:
        self._box, self._workdir = box, workdir
        self._shells: list[str | None] = ["bash", None]

    async def run(
        self, command: str, *, timeout: float, call_id: str | None = None, keep: int = SHOWN_BYTES
    ) -> Observation:
        """Run ``command``; at most ``keep`` bytes of its output are in the observation.

        Raises:
            OrchardError: trouble of the sandbox, not of the command.
        """
        command = carried(command)  # what a model's JSON may say, and no argument can hold
        try:
            result = await self._run(command, timeout, keep)
        except (CommandNotStarted, InvalidArgument) as error:
            if isinstance(error, InvalidArgument) and error.field != "command":
                raise
            return _observe(command, call_id, "", None, f"not started: {error.message}", 0.0)
        code, note = _ending(result, timeout)
        return _observe(command, call_id, clip(result, keep), code, note, result.duration)

    async def _run(self, command: str, timeout: float, keep: int) -> Result:
        # 4 bytes more on each side than shown, so that the cut never falls beside what the sandbox left out
        limit = max(keep + 8, 1024)
        while True:
            options: CommandOptions = {"cwd": self._workdir, "env": QUIET, "merge": True, "output_limit": limit}
            if self._shells[0]:
                options["shell"] = self._shells[0]
            try:
                return await self._box.run(command, timeout=timeout, **options)
            except CommandNotStarted as error:
                if error.reason != "no_shell" or len(self._shells) == 1:
                    raise
                self._shells.pop(0)


def clip(result: Result, limit: int = SHOWN_BYTES) -> str:
    """Return stdout as text: whole, or head and tail of ``limit`` bytes in all with a note of what lies between."""
    raw = result.stdout
    if not result.stdout_dropped and len(raw) <= limit:
        return result.text
    head, tail = raw[: limit // 2], raw[len(raw) - limit // 2 :]
    for _ in range(3):  # a character of UTF-8 has at most three continuation bytes
        head = head[:-1] if head and _continues(raw, len(head)) else head
        tail = tail[1:] if tail and _continues(tail, 0) else tail
    left_out = result.stdout_bytes - len(head) - len(tail)
    note = f"\n[… {left_out} of {result.stdout_bytes} bytes left out here; use a file to read it in parts …]\n"
    return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


def _continues(raw: bytes, at: int) -> bool:
    return at < len(raw) and raw[at] & 0xC0 == 0x80


def _ending(result: Result, timeout: float) -> tuple[int | None, str]:
    if result.timed_out:
        return None, f"stopped with all it had started after {timeout:.0f} s, the time limit of one command"
    code = result.exit_code
    if code is None and result.signal:
        number = getattr(signal, f"SIG{result.signal}", None)
        code = 128 + number if number else None
    if result.oom_killed:
        return code, "killed: out of memory"
    if result.signal:
        return code, f"ended by signal {result.signal}"
    return code, ""


def _observe(
    command: str, call_id: str | None, output: str, code: int | None, note: str, seconds: float
) -> Observation:
    event = ToolEvent(
        call_id=call_id, name="bash", arguments={"command": command}, output=output, exit_code=code,
        seconds=round(seconds, 4), error=note or None,
    )  # fmt: skip
    return Observation(output, code, note, event)
