"""``orchard deploy``: what a cluster lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchard.cli import console
from orchard.cli.options import Json

app = typer.Typer(add_completion=False, no_args_is_help=True)
_WORDS = {"ok": "ok", "missing": "MISSING", "absent": "absent", "unknown": "unknown"}
_CODES = {True: 0, None: 7, False: 8}


@app.callback()
def _group() -> None:
    """Orchard on a Kubernetes cluster; the chart is in deploy/chart."""


@app.command(
    epilog="Exit codes: 0 sandboxes can be made here · 2 no cluster is named · 7 not seen: not tried, not reached from"
    " here, or no node had room · 8 they cannot"
)
def check(
    probe: Annotated[bool, typer.Option(help="Also make a sandbox without network and run a command in it.")] = True,
    json: Json = False,
) -> None:
    """Say what the cluster lacks for sandboxes, the most important first, each with what to do.

    ORCHARD_KUBERNETES names the settings, as for `orchard serve --backend kubernetes`.

    Example: orchard deploy check
    """
    raise typer.Exit(_CODES[console.run_async(_check(probe, json))])


async def _check(probe: bool, json: bool) -> bool | None:
    from orchard.sandbox.kubernetes.checks import Finding, examine, fitness, how_to_try

    found = list[Finding]()
    async for finding in examine(probe=probe):
        found.append(finding)
        if json:
            continue
        reason = f" ({finding.reason})" if finding.reason else ""
        console.out(f"{_WORDS[finding.state]:<9}{finding.name:<16}{finding.meaning}{reason}")
        if finding.mend and finding.state != "ok":
            console.out(f"{'':<25}→ {finding.mend}")
    fit = fitness(found)
    if json:
        console.out_json({"fit": fit, "findings": [asdict(each) for each in found]})
    elif fit is None:
        console.out(f"not seen whether sandboxes can be made here, and are shut: {how_to_try(found)}")
    else:
        console.out("sandboxes can be made here" if fit else "sandboxes cannot be made here, or are not shut")
    return fit
