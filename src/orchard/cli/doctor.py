"""``orchard doctor``."""

from __future__ import annotations

import typer

from orchard.cli import console
from orchard.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command(epilog="Exit codes: 0 sandboxes can be made here · 8 they cannot")
def doctor(json: Json = False) -> None:
    """Say what this machine can and cannot do, why, and how to mend it.

    Example: orchard doctor
    """
    console.out(str(json))
