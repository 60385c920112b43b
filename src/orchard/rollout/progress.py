"""What a run tells a person meanwhile: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from orchard.rollout.jobs import Event, Observe
from orchard.trajectories import Failure, RolloutRecord


class Board:
    """Counts events; on a terminal it draws one bar, and prints only what went wrong and what is done."""

    def __init__(self, console: Console, total: int, bar: tuple[Progress, TaskID] | None) -> None:
        self._console, self._total, self._bar = console, total, bar
        self._known = 0
        self.done = self.passed = self.failed = self.running = 0

    def observe(self, event: Event) -> None:
        """Take in one event."""
        if event.kind != "known" and self._known:
            self._say(f"[dim]resumed[/]  {self._known} of {self._total} were done before")
            self._known = 0
        if event.kind == "started":
            self.running += 1
        elif event.kind == "known":
            self.done += 1
            self._known += 1
        elif event.kind == "prepared":
            self._say(f"[dim]prepared[/] {escape(event.job.source.id)}")
        elif event.kind == "failed" and event.failure:
            self._say(f"[yellow]again[/]    {escape(event.job.title)}: {_words(event.failure)}")
        elif event.kind == "closed" and event.record:
            self._closed(event, event.record)
        self._draw()

    def _closed(self, event: Event, record: RolloutRecord) -> None:
        self.done += 1
        self.running = max(0, self.running - 1)
        self.passed += record.reward is not None and record.reward >= 1.0
        self.failed += record.failure is not None
        seconds = sum(record.seconds.get(stage, 0.0) for stage in ("sandbox", "harness", "patch", "grade"))
        facts = f"{record.stop or '-'}, {record.turns} turns, {seconds:.1f} s ({self.done}/{self._total})"
        self._say(f"{_word(record)} {escape(event.job.title)} [dim]{facts}[/]")
        if record.failure:
            self._say(f"         {_words(record.failure)}")

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)  # in a log, an event is one line of whatever length

    def _draw(self) -> None:
        if self._bar:
            progress, bar = self._bar
            progress.update(
                bar,
                completed=self.done,
                description=f"{self.running} running · {self.passed} passed · {self.failed} broken",
            )


def _words(failure: Failure) -> str:
    """Return where it failed and why, in one line; of a longer text the end tells most."""
    text = failure.text.strip().splitlines() or [""]
    shown = text[0][:300] if len(text) == 1 else f"{text[0][:150]} … {text[-1][:150]}"
    return escape(f"{failure.seam}, {failure.reason}: {shown}")


def _word(record: RolloutRecord) -> str:
    if record.failure:
        return "[yellow]broken[/]  "
    if record.reward is not None and record.reward >= 1.0:
        return "[green]passed[/]  "
    return f"[red]failed[/]   [dim]{record.reward:g}[/]" if record.reward else "[red]failed[/]  "


@contextmanager
def board(console: Console, total: int) -> Iterator[Observe]:
    """Yield an observer for ``total`` jobs that shows what happens on ``console``."""
    if not console.is_terminal:
        yield Board(console, total, None).observe
        return
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Board(console, total, (progress, progress.add_task("", total=total))).observe
