"""``orchard doctor``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from orchard.cli import console
from orchard.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command(epilog="Exit codes: 0 sandboxes can be made here · 8 they cannot")
def doctor(json: Json = False) -> None:
    """Say what this machine can and cannot do, why, and the one command that mends each.

    Example: orchard doctor
    """
    from orchard.sandbox.local.doctor import examine

    checks = examine()
    fit = all(check.ok or not check.required for check in checks)
    if json:
        console.out_json({"fit": fit, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            word = "ok" if check.ok else "MISSING" if check.required else "absent"
            console.out(f"{word:<9}{check.name:<12}{check.meaning}")
            if check.mend and not check.ok:
                console.out(f"{'':<21}→ {check.mend}")
        console.out("sandboxes can be made here" if fit else "sandboxes cannot be made here")
    raise typer.Exit(0 if fit else 8)
