"""What a recording gateway shows of its calls: a table on a terminal, a line for each elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchard.cli import console
from orchard.trajectories import AnyRecord, CallRecord, RefusalRecord, SessionRecord, Store

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 15
"""The newest calls that stay on a terminal."""
COLUMNS = ("TIME", "SESSION", "CALL", "PLACED", "TOKENS", "SECONDS", "END")


class Watched(Store):
    """A store that tells of each record once it is durable."""

    told: Callable[[AnyRecord], None] | None = None

    async def append(self, record: AnyRecord) -> None:
        """See ``Store.append``."""
        await super().append(record)
        if self.told is not None:
            self.told(record)


class Calls:
    """Counts what is recorded, and keeps the newest calls as rows."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}
        """Session -> its name, where it has one."""
        self.calls = self.tokens = self.failed = 0
        self.rows: deque[tuple[str, ...]] = deque(maxlen=SHOWN)

    def take(self, record: AnyRecord) -> tuple[str, ...] | None:
        """Take in one record; return its row, if it is one that a person watches for."""
        if isinstance(record, SessionRecord):
            self.sessions[record.session] = record.labels.get("name") or record.session
            return None
        if isinstance(record, CallRecord):
            row = self._call(record)
        elif isinstance(record, RefusalRecord):
            row = (_now(), self.sessions.get(record.session, record.session), "-", "refused", "-", "-", record.code)
        else:
            return None
        self.rows.append(row)
        return row

    def _call(self, call: CallRecord) -> tuple[str, ...]:
        usage, times = call.usage, call.times
        self.calls += 1
        self.tokens += usage.prompt_tokens + usage.completion_tokens
        self.failed += call.status != "ok"
        seconds = (times.engine_end - times.received).total_seconds() if times.engine_end else None
        placed = call.matched if call.purpose == "agent" else f"{call.matched}, {call.purpose}"
        end = call.finish_reason or "-" if call.status == "ok" else f"{call.status}: {call.error_code}"
        return (
            _now(), self.sessions.get(call.session, call.session), str(call.index), placed,
            f"{usage.prompt_tokens}+{usage.completion_tokens}", "-" if seconds is None else f"{seconds:.2f}", end,
        )  # fmt: skip

    @property
    def summary(self) -> str:
        """All of it in one line."""
        failed = f", {self.failed} of them failed or cut" if self.failed else ""
        return f"{_many(self.calls, 'call')} in {_many(len(self.sessions), 'session')}, {self.tokens} tokens{failed}"


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _now() -> str:
    return datetime.now(UTC).astimezone().strftime("%H:%M:%S")


@contextmanager
def watching(store: Watched) -> Generator[Calls]:
    """Show what ``store`` records while the body runs; count it."""
    calls = Calls()
    if not sys.stderr.isatty() or console.debugging():

        def tell(record: AnyRecord) -> None:
            if row := calls.take(record):
                console.say("  ".join(row))

        store.told = tell
        yield calls
        return
    from rich.console import Console
    from rich.live import Live

    both = sys.stdout.isatty()  # else what is printed there goes to a file or pipe, and not above the table
    with Live(_table(calls), console=Console(stderr=True), auto_refresh=False, redirect_stdout=both) as live:

        def show(record: AnyRecord) -> None:
            calls.take(record)
            live.update(_table(calls), refresh=True)

        store.told = show
        yield calls


def _table(calls: Calls) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, caption=calls.summary, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in calls.rows:
        table.add_row(*row)
    return table
