"""``orchard reap``: remove Pods of sandboxes whose time is over, where no service does it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.errors import InvalidArgument

app = typer.Typer(add_completion=False)


@app.command(epilog=console.EXIT_CODES)
def reap(
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    every: Annotated[float | None, typer.Option(help="Seconds between looks, without --once.")] = None,
    json: Json = False,
) -> None:
    """Remove Pods of sandboxes that have ended, that never started in time, or that outlived their longest time.

    Any number may run at once, beside any number of services. ORCHARD_KUBERNETES names the settings.

    Example: orchard reap --once
    """
    if once == (every is not None):
        raise InvalidArgument("say either --once or --every SECONDS", field="once")
    console.run_async(_reap(every, json))


async def _reap(every: float | None, json: bool) -> None:
    from orchard.sandbox.kubernetes import KubernetesBackend

    backend = KubernetesBackend()
    try:
        while True:
            removed = await backend.reap()
            if json:
                console.out_json([asdict(each) for each in removed])
            else:
                console.out_table(
                    ("SANDBOX", "WHY", "REASON"), [(each.id, each.why, each.reason or "-") for each in removed]
                )
            if every is None:
                return
            await asyncio.sleep(every)
    finally:
        await backend.close()
