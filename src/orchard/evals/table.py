"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from orchard.evals.metrics import AtK, Metrics
from orchard.evals.report import Report, Row


def render(report: Report) -> RenderableType:
    """Return the table, then what is to be known beside it: refused tasks, surprises, how the intervals are made."""
    columns = _columns(report)
    table = Table(
        title=escape(report.title),
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in columns:
        text = name in ("harness", "policy", "must")
        # folded where it does not fit, the widest first, and never cut: two rows must not look alike
        table.add_column(name, justify="left" if text else "right", no_wrap=name == "passed", overflow="fold")
    for row in report.rows:
        table.add_row(*(escape(text(row)) for text in columns.values()))
    return Group(table, *(Text.from_markup(line) for line in _notes(report)))


def _columns(report: Report) -> dict[str, Callable[[Row], str]]:
    """Return the columns that say something in this report."""
    columns: dict[str, Callable[[Row], str]] = {"harness": lambda row: row.harness, "policy": lambda row: row.policy}
    if any(row.expect for row in report.rows):
        columns["must"] = lambda row: expected(report, row)
    columns["passed"] = lambda row: f"{row.metrics.passed}/{row.metrics.judged}"
    columns["mean [95 %]"] = lambda row: mean_text(row.metrics)
    if any(one.k > 1 for row in report.rows for one in row.metrics.pass_at):
        columns["pass@k"] = lambda row: at_text(row.metrics.pass_at)
        columns["pass^k"] = lambda row: at_text(row.metrics.pass_hat)
    if any(row.metrics.judged < row.metrics.attempts for row in report.rows):
        columns["not judged"] = lambda row: unjudged_text(row.metrics)
    return columns


def mean_text(metrics: Metrics) -> str:
    """Return ``0.75 [0.30, 0.95]``, with the bounds that unjudged attempts leave open."""
    if metrics.mean is None:
        return "–"
    text = f"{metrics.mean.mean:.2f} [{metrics.mean.low:.2f}, {metrics.mean.high:.2f}]"
    return text if metrics.bounds is None else f"{text} ({metrics.bounds[0]:.2f} to {metrics.bounds[1]:.2f})"


def at_text(values: Sequence[AtK]) -> str:
    """Return ``1: 0.50  4: 0.88``; a value that some tasks are too short for is marked."""
    parts = [f"{one.k}: {_value(one)}" for one in values]
    return "  ".join(parts) or "–"


def expected(report: Report, row: Row) -> str:
    """Return ``fail ✓``: what the script's author expects and whether it came; empty where nothing is expected."""
    if row.expect is None:
        return ""
    wrong = sum((cell.harness, cell.policy) == (row.harness, row.policy) for cell in report.surprises)
    return f"{row.expect} {f'✗ ({wrong} did not)' if wrong else '✓'}"


def methods(report: Report) -> str:
    """Return how the intervals are made."""
    found = sorted({row.metrics.mean.method for row in report.rows if row.metrics.mean})
    return f"95 % intervals: {'; '.join(found)}." if found else ""


def _value(one: AtK) -> str:
    if one.value is None:
        return "–"
    return f"{one.value:.2f}" + ("*" if one.short else "")


def unjudged_text(metrics: Metrics) -> str:
    """Return how many rollouts have no reward, and why."""
    parts = [f"{count} {seam}" for seam, count in metrics.failures.items()]
    parts += [f"{metrics.missing} missing"] if metrics.missing else []
    return ", ".join(parts) or "0"


def _notes(report: Report) -> Iterator[str]:
    if not report.validated:
        yield "[bold yellow]not validated[/]: no gold and no empty run proves these tasks"
    for verdict in report.refused:
        yield f"[bold red]task refused[/] {escape(verdict.task)}: {escape(verdict.reason)}"
    for cell in report.surprises:
        got = "no reward" if cell.reward is None else f"{cell.reward:g}"
        yield (
            f"[bold red]unexpected[/] {escape(cell.task)} · {escape(cell.harness)} · {escape(cell.policy)} "
            f"#{cell.attempt}: must {cell.expect}, got {got}"
        )
    yield f"[dim]{escape(methods(report))}[/]"
    if any(one.short for row in report.rows for one in [*row.metrics.pass_at, *row.metrics.pass_hat]):
        yield "[dim]* some tasks have fewer judged attempts than k and are not in this value[/]"
