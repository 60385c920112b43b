"""The table of docs/benchmarks.md, made from results.json."""

import re
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
HEAD = "| figure | value | target | met | floor | peers | n |\n|---|---|---|---|---|---|---|"


def render(rows: list[dict[str, Any]]) -> str:
    """Return one table for each measurement, with the command that repeats it and the machine that it ran on."""
    parts: list[str] = []
    for measurement in dict.fromkeys(row["measurement"] for row in rows):
        mine = [row for row in rows if row["measurement"] == measurement]
        lines = [_line(row) for row in mine]
        notes = dict.fromkeys(row["note"] for row in mine if row["note"])
        told = "".join(f"\n\n{note[0].upper()}{note[1:]}." for note in notes)
        parts.append(
            f"`python -m bench --only {measurement}` ({_machine(mine[0])})\n\n{HEAD}\n" + "\n".join(lines) + told
        )
    return "\n\n".join(parts)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the markers in a document."""
    text = path.read_text()
    block = f"{BEGIN}\n{render(rows)}\n{END}"
    path.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: block, text, flags=re.DOTALL))


def _line(row: dict[str, Any]) -> str:
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    value = f"**{_number(row['value'])} {row['unit']}**"
    cells = [row["name"], value, row["target"] or "", met, _named(row["floor"]), _named(row["peers"]), str(row["n"])]
    return f"| {' | '.join(cells)} |"


def _named(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in values.items())


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _machine(row: dict[str, Any]) -> str:
    facts = row["machine"]
    return (
        f"{facts['date'][:10]}, {facts['cores']} cores, {facts['processor']}, {facts['memory_gib']} GiB, "
        f"{facts['kernel']}, load before {facts['load_before']}"
    )
