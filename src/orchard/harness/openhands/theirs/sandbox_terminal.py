"""OpenHands' terminal on a pseudoterminal that is the sandbox's."""
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import codecs
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from openhands.tools.terminal.constants import CMD_OUTPUT_PS1_END
from openhands.tools.terminal.terminal.subprocess_terminal import ENTER, SubprocessTerminal

_PROMPT_SECONDS = 20.0
_LOOKS = 200
"""Most looks for the end of a prompt that has begun to come."""
_PROMPT = CMD_OUTPUT_PS1_END.strip()
_NO_MARKS = "bind 'set enable-bracketed-paste off' 2>/dev/null"
"""Keeps bash from writing marks around what is typed, which no terminal would show."""
_SET, _IS_SET = "echo __$((40 + 2))set__", "__42set__"
"""A command, and what it prints: not to be seen before it has run, since what is typed is echoed, perhaps twice."""
_QUIET = {"GIT_PAGER": "cat", "PAGER": "cat", "MANPAGER": "cat"}


class SandboxTerminal(SubprocessTerminal):
    """As its base, but what is typed and what is seen goes over the bridge."""

    def __init__(self, bridge: Any, work_dir: str, env: Mapping[str, str] | None) -> None:
        super().__init__(work_dir, env=env)
        self._bridge, self._terminal = bridge, ""
        self.session: Any = None
        """OpenHands' session that uses it."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def initialize(self) -> None:
        """Start a shell, and wait for its prompt."""
        env = {**_QUIET, **(self._env or {}), "PS1": self.PS1, "PS2": "", "TERM": "xterm-256color"}
        self._terminal = self._bridge.ask(do="open", env=env)["terminal"]
        self._initialized = True
        prompt = f'export PROMPT_COMMAND=\'export PS1="{self.PS1}"\'; export PS2=""'
        self._write_pty(f"set +H; {_NO_MARKS}; {prompt}; {_SET}".encode() + ENTER)
        until = time.monotonic() + _PROMPT_SECONDS
        while time.monotonic() < until and not self._closed:
            _, found, after = self.read_screen().rpartition(_IS_SET)
            if found and _PROMPT in after:
                break
            time.sleep(0.02)  # noqa: TID251 - a thread of another program
        self.clear_screen()

    def _write_pty(self, data: bytes) -> None:
        self._bridge.ask(do="type", terminal=self._terminal, data=b64encode(data).decode())

    def _take(self) -> None:
        """Take what is new on the screen, a prompt never without its end: that alone would count as a change."""
        for _ in range(_LOOKS):
            if not self._terminal:
                return
            seen = self._bridge.ask(do="read", terminal=self._terminal)
            # without CR, as the screen is read; its base finds no prompt that has some, and asks for another each time
            if text := self._decoder.decode(b64decode(seen["data"])).replace("\r", ""):
                with self.output_lock:
                    self._add_text_to_buffer(text)
            if seen["ended"]:  # the shell has exited: the next command gets a new one
                self._closed = True
                if self.session is not None:
                    self.session._closed = True
            if self._closed or not self.output_buffer or not self.output_buffer[-1].endswith(_PROMPT):
                return
            time.sleep(0.01)  # noqa: TID251 - a thread of another program

    def read_screen(self) -> str:
        """Return what is on the screen."""
        self._take()
        return super().read_screen()

    def clear_screen(self) -> None:
        """Drop all before the last prompt."""
        self._take()
        if not self._closed:
            super().clear_screen()

    def interrupt(self) -> bool:
        """Press Ctrl-C."""
        self._write_pty(b"\x03")
        self._current_command_running = False
        return True

    def is_running(self) -> bool:
        """Return whether the screen ends with something other than a prompt."""
        return not self.read_screen().rstrip().endswith(_PROMPT) and not self._closed

    def close(self) -> None:
        """End the shell."""
        self._closed = True
        if self._terminal:
            self._bridge.ask(do="close", terminal=self._terminal)
            self._terminal = ""
