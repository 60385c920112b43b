"""``orchard report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchard.cli import console
from orchard.cli.evaluation import show
from orchard.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command(epilog=console.EXIT_CODES)
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    validated: Annotated[bool, typer.Option(help="Leave out tasks that no gold and empty run proves.")] = True,
    json: Json = False,
) -> None:
    """Report on a run as it stands: table, report.json, report.html.

    Example: orchard report demo
    """
    from orchard.evals.run import report_on

    show(report_on(run, validated=validated), run, json=json)
