"""The report as one HTML file that asks nothing of any network.

What agents wrote is hostile: on the page's own lines it is escaped, in the data it stands as compressed base64, and the
script puts it on the screen as text only. The page's policy allows this one script, by its hash, and no other.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from orchard.evals.metrics import Metrics
from orchard.evals.report import Cell, Report, Row
from orchard.evals.table import at_text, expected, mean_text, methods, unjudged_text
from orchard.evals.views import view
from orchard.trajectories import Store

ASSETS = Path(__file__).with_name("assets")
_MARKS = {True: ("pass", "✓"), False: ("fail", "✗"), None: ("none", "?")}


def write_page(path: Path, report: Report, store: Store) -> None:
    """Write the page; one trajectory at a time is in memory. The file is whole or not there."""
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as file:
        for piece in _pieces(report, store):
            file.write(piece)
    partial.rename(path)


def _pieces(report: Report, store: Store) -> Iterator[str]:
    script = (ASSETS / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fill: dict[str, Callable[[], Iterator[str]]] = {
        "policy": lambda: iter([f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]),
        "title": lambda: iter([escape(report.title)]),
        "style": lambda: iter([(ASSETS / "page.css").read_text()]),
        "script": lambda: iter([script]),
        "facts": lambda: iter([_facts(report)]),
        "alerts": lambda: _alerts(report),
        "results": lambda: (_result(row, expected(report, row)) for row in report.rows),
        "intervals": lambda: iter([escape(methods(report))]),
        "matrix": lambda: _matrix(report),
        "rollouts": lambda: (_rollout(cell) for cell in report.cells),
        "data": lambda: (_data(cell, store) for cell in report.cells),
    }
    # the template is cut once, so nothing that is filled in can be taken for a place to fill
    for position, piece in enumerate(re.split(r"\{\{(\w+)\}\}", (ASSETS / "page.html").read_text())):
        yield from fill[piece]() if position % 2 else [piece]


def _facts(report: Report) -> str:
    judged = sum(cell.reward is not None for cell in report.cells)
    tasks, rollouts = len({cell.task for cell in report.cells}), len(report.cells)
    facts = [counted(tasks, "task"), counted(rollouts, "rollout"), f"{judged} judged"]
    facts += [report.created.strftime("%Y-%m-%d %H:%M UTC")]
    facts += [f"{report.seconds:.0f} s"] if report.seconds else []
    facts += [f"Orchard {report.environment['orchard']}"] if "orchard" in report.environment else []
    return escape(" · ".join([*facts, report.run]))


def _alerts(report: Report) -> Iterator[str]:
    if not report.validated:
        yield _alert("Not validated.", "No gold and no empty run proves these tasks.")
    for verdict in report.refused:
        yield _alert(f"Task refused: {verdict.task}.", f"{verdict.reason}. It is in no metric.")
    for cell in report.surprises:
        got = "no reward" if cell.reward is None else f"{cell.reward:g}"
        title = f"Unexpected: {cell.task}, {cell.harness}, {cell.policy} #{cell.attempt}"
        yield _alert(title, f"must {cell.expect}, got {got}.")


def _alert(title: str, text: str) -> str:
    return f'<p class="alert"><b>{escape(title)}</b> {escape(text)}</p>\n'


def _result(row: Row, note: str) -> str:
    metrics = row.metrics
    cells = [at_text(metrics.pass_at), at_text(metrics.pass_hat), unjudged_text(metrics)]
    numbers = "".join(f'<td class="num">{escape(text)}</td>' for text in cells)
    script = f"<br><small>must {escape(note)}</small>" if note else ""
    return (
        f"<tr><td>{escape(row.harness)}</td><td>{escape(row.policy)}{script}</td><td>{_bar(metrics)}</td>"
        f'<td class="num">{metrics.passed}/{metrics.judged}</td>{numbers}</tr>\n'
    )


def _bar(metrics: Metrics) -> str:
    text = escape(mean_text(metrics))
    if metrics.mean is None:
        return f'<span class="value">{text}</span>'
    values = (metrics.mean.mean, metrics.mean.low, metrics.mean.high)
    mean, low, high = (min(1.0, max(0.0, value)) * 100 for value in values)
    return (
        f'<div class="bar" role="img" aria-label="{text}"><i style="width:{mean:.1f}%"></i>'
        f'<b style="left:{low:.1f}%;width:{high - low:.1f}%"></b></div><span class="value">{text}</span>'
    )


def _matrix(report: Report) -> Iterator[str]:
    columns = [(row.harness, row.policy) for row in report.rows]
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in report.cells:
        found.setdefault((cell.task, cell.harness, cell.policy), []).append(cell)
    yield "<thead><tr><th>task</th>"
    for harness, policy in columns:
        yield f"<th><span>{_breaking(policy)}</span><small>{_breaking(harness)}</small></th>"
    yield "</tr></thead>\n<tbody>\n"
    refused = {verdict.task for verdict in report.refused}
    for task in sorted({cell.task for cell in report.cells}):
        mark = ' <small class="warn">refused</small>' if task in refused else ""
        yield f"<tr><th>{_breaking(task)}{mark}</th>"
        for harness, policy in columns:
            yield f"<td>{_marks(found.get((task, harness, policy), []))}</td>"
        yield "</tr>\n"
    yield "</tbody>"


def counted(number: int, thing: str) -> str:
    """Return ``1 turn``, ``2 turns``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _breaking(name: str) -> str:
    """Return a name that may break at more places than at its hyphens, so that many columns fit beside each other."""
    return re.sub(r"([:/_.@])", r"\1<wbr>", escape(name))


def _marks(cells: Sequence[Cell]) -> str:
    return " ".join(
        f'<a class="mark {_MARKS[cell.passed][0]}" href="#{escape(cell.id)}" title="{escape(_title(cell))}">'
        f"{_MARKS[cell.passed][1]}</a>"
        for cell in cells
    )


def _title(cell: Cell) -> str:
    reward = cell.failure or (f"reward {cell.reward:g}" if cell.reward is not None else "no reward")
    return f"attempt {cell.attempt}: {reward}, {cell.stop or 'no end'}, {counted(cell.turns, 'turn')}"


def _rollout(cell: Cell) -> str:
    state, mark = _MARKS[cell.passed]
    words = f"{cell.task} {cell.harness} {cell.policy} #{cell.attempt}".lower()
    end = f"{cell.failure or cell.stop or ''}, {counted(cell.turns, 'turn')}, {cell.seconds:g} s"
    return (
        f'<details class="rollout" id="{escape(cell.id)}" data-state="{state}" data-text="{escape(words)}">'
        f'<summary><span class="mark {state}">{mark}</span><span class="name">{escape(cell.task)}</span>'
        f"<span>{escape(cell.harness)}</span><span>{escape(cell.policy)} #{cell.attempt}</span>"
        f'<span class="dim">{escape(end)}</span></summary></details>\n'
    )


def _data(cell: Cell, store: Store) -> str:
    facts = json.dumps(view(store.trajectory(cell.id)), separators=(",", ":")).encode()
    packed = base64.b64encode(gzip.compress(facts, 6, mtime=0)).decode()
    return f'<script type="application/octet-stream" id="data-{escape(cell.id)}">{packed}</script>\n'
