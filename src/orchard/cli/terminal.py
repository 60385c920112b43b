"""This program's terminal, lent to a command in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

from orchard.sandbox.process import Process

_SIZE = 80, 24  # where there is no terminal, or one that does not know its size


def size() -> tuple[int, int]:
    """Return columns and rows of the terminal that this program is on."""
    for file in (sys.stdin, sys.stdout, sys.stderr):
        if file.isatty() and all(found := os.get_terminal_size(file.fileno())):
            return found[0], found[1]
    return _SIZE


@contextmanager
def raw() -> Generator[None]:
    """Pass every key on as it is while the body runs, Ctrl-C too; does nothing where stdin is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


async def follow_size(process: Process) -> None:
    """Give ``process`` this terminal's size, now and each time that it changes. Ends when cancelled."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            changed.clear()
            await process.resize(*size())
            await changed.wait()
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
