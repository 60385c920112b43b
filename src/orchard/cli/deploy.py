"""``orchard deploy``: what a cluster lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchard.cli import console
from orchard.cli.options import Json

app = typer.Typer(add_completion=False, no_args_is_help=True)
_WORDS = {"ok": "ok", "missing": "MISSING", "absent": "absent", "unknown": "unknown"}


@app.callback()
def _group() -> None:
    """Orchard on a Kubernetes cluster; the chart is in deploy/chart."""


@app.command(epilog="Exit codes: 0 sandboxes can be made here · 2 no cluster is named · 8 they cannot")
def check(
    probe: Annotated[bool, typer.Option(help="Also make a sandbox without network and run a command in it.")] = True,
    json: Json = False,
) -> None:
    """Say what the cluster lacks for sandboxes, the most important first, each with what to do.

    ORCHARD_KUBERNETES names the settings, as for `orchard serve --backend kubernetes`.

    Example: orchard deploy check
    """
    fit = console.run_async(_check(probe, json))
    raise typer.Exit(0 if fit else 8)


async def _check(probe: bool, json: bool) -> bool:
    from orchard.sandbox.kubernetes.checks import Finding, examine

    found = list[Finding]()
    async for finding in examine(probe=probe):
        found.append(finding)
        if json:
            continue
        console.out(f"{_WORDS[finding.state]:<9}{finding.name:<16}{finding.meaning}")
        if finding.mend and finding.state != "ok":
            console.out(f"{'':<25}→ {finding.mend}")
    fit = all(each.state != "missing" for each in found)
    if json:
        console.out_json({"fit": fit, "findings": [asdict(each) for each in found]})
    else:
        console.out("sandboxes can be made here" if fit else "sandboxes cannot be made here, or are not shut")
    return fit
