"""What all commands share: exit codes, errors as one sentence, JSON, tables, signals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchard.core import errors
from orchard.core.config import data_dir

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

EXIT_CODES = (
    "Exit codes: 0 done · 1 failed · 2 wrong arguments · 3 not found · 4 key, quota or rate · 5 the sandbox has ended"
    " · 6 the sandbox could not be made · 7 cannot be reached, or too late · 8 not possible here · 130/143 interrupted"
)
RUN_CODES = (
    "Exit codes: the command's own; 124 timed out · 125 Orchard failed (stderr says why) · 126 cannot be executed"
    " · 127 no such program · 128+N ended by signal N (137: KILL, also out of memory)"
)
_CODES: tuple[tuple[type[errors.OrchardError], int], ...] = (
    (errors.InvalidArgument, 2), (errors.NotFound, 3), (errors.FileMissing, 3), (errors.Unauthorized, 4),
    (errors.QuotaExceeded, 4), (errors.RateLimited, 4), (errors.SandboxGone, 5), (errors.CreateFailed, 6),
    (errors.Unavailable, 7), (errors.DeadlineExceeded, 7), (errors.Unsupported, 8), (errors.MachineUnfit, 8),
)  # fmt: skip

_debug = False


def set_debug(wanted: bool) -> None:
    """Show tracebacks and debug logs from now on."""
    global _debug
    _debug = wanted
    if wanted:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)


def debugging() -> bool:
    """Return whether ``--debug`` was given."""
    return _debug


def code_of(error: errors.OrchardError) -> int:
    """Return the exit code for a kind of error; see ``EXIT_CODES``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)


def show_error(error: errors.OrchardError) -> None:
    """Print one sentence and the hint."""
    reason = f" ({error.reason})" if error.reason else ""
    request = f" [request {error.request_id}]" if error.request_id and isinstance(error, errors.InternalError) else ""
    say(f"error: {error.message}{reason}{request}")
    if error.hint:
        say(f"hint: {error.hint}")


def show_os_error(error: OSError) -> None:
    """Print what this machine's system refused, and of which file: a fault of the place, not of Orchard."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    say(f"error: {name}{': ' if name else ''}{error.strerror or error}")
    home = data_dir().absolute()
    if name and (home in (path := Path(name).absolute(), *path.parents) or path in home.parents):
        say(f"hint: state is kept in {home}; ORCHARD_HOME names another folder")


def say(text: str) -> None:
    """Print a line for people, on stderr."""
    print(text, file=sys.stderr)


def out(text: str) -> None:
    """Print a line of the result, on stdout."""
    print(text)


def out_json(value: Any) -> None:
    """Print one JSON document, on stdout."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON form of {type(value).__name__}")


def out_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: drawn on a terminal, tab-separated elsewhere."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console(stderr=False).print(table)


@contextmanager
def working(what: str) -> Generator[None]:
    """Show a spinner on stderr while the body runs, if stderr is a terminal."""
    if not sys.stderr.isatty() or _debug:
        yield
        return
    with _console(stderr=True).status(what):
        yield


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)


def age(at: datetime | None) -> str:
    """Return how long ago, or in how long, in one figure: ``12s``, ``3m``, ``in 59m``."""
    if at is None:
        return "-"
    seconds = (datetime.now(UTC) - at).total_seconds()
    size = abs(seconds)
    for unit, many in (("d", 86400), ("h", 3600), ("m", 60)):
        if size >= 2 * many:
            text = f"{size / many:.0f}{unit}"
            break
    else:
        text = f"{size:.0f}s"
    return text if seconds >= 0 else f"in {text}"


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; SIGINT and SIGTERM cancel it once, so that its blocks are left in order, then exit 130 or 143."""
    return asyncio.run(_guarded(work))


async def _guarded(work: Coroutine[Any, Any, T]) -> T:
    loop, caught = asyncio.get_running_loop(), list[int]()
    task = asyncio.ensure_future(work)

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, int(number))
    try:
        return await task
    except asyncio.CancelledError:
        if not caught:
            raise
        raise SystemExit(128 + caught[0]) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
