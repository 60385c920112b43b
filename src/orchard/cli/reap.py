"""``orchard reap``: remove Pods of sandboxes whose time is over, where no service does it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.errors import InvalidArgument, OrchardError

if TYPE_CHECKING:
    from orchard.sandbox.kubernetes.reap import Reaped

app = typer.Typer(add_completion=False)


@app.command(epilog=console.EXIT_CODES)
def reap(
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    every: Annotated[float | None, typer.Option(help="Seconds between looks, without --once; 1 or more.")] = None,
    json: Json = False,
) -> None:
    """Remove Pods of sandboxes that have ended, that never started in time, or that outlived their longest time.

    Any number may run at once, beside any number of services. ORCHARD_KUBERNETES names the settings.
    With --every a look that fails is told on stderr, and the next one comes all the same.

    Example: orchard reap --once
    """
    if once == (every is not None):
        raise InvalidArgument("say either --once or --every SECONDS", field="once")
    if every is not None and not (math.isfinite(every) and every >= 1):
        raise InvalidArgument(f"--every must be 1 s or more, not {every:g}", field="every")
    console.run_async(_reap(every, json))


async def _reap(every: float | None, json: bool) -> None:
    from orchard.sandbox.kubernetes import KubernetesBackend
    from orchard.sandbox.kubernetes.client import Cluster

    backend = KubernetesBackend()
    try:
        if every is None:
            _tell(await backend.reap(), json)
            return
        await (await Cluster.connect(backend.settings)).close()  # no cluster named: told now, not again and again
        while True:
            try:
                _tell(await backend.reap(), json)
            except OrchardError as error:
                console.show_error(error)
            await asyncio.sleep(every)
    finally:
        await backend.close()


def _tell(removed: Sequence[Reaped], json: bool) -> None:
    if json:
        console.out_json([asdict(each) for each in removed])
    else:
        console.out_table(("SANDBOX", "WHY", "REASON"), [(each.id, each.why, each.reason or "-") for each in removed])
