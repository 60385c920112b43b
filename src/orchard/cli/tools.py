"""``orchard tools``: the tool layers in this machine's cache folder."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.errors import NotFound

if TYPE_CHECKING:
    from orchard.sandbox.toolcache import Layer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Tool layers on this machine.", epilog=console.EXIT_CODES
)


@app.command("ls", epilog=console.EXIT_CODES)
def list_(json: Json = False) -> None:
    """List the layers, the longest unused first: size, when each was last asked for, whether something uses it now.

    Example: orchard tools ls
    """
    from orchard.sandbox.toolcache import layers

    found = layers()
    if json:
        console.out_json([_facts(one) for one in found])
        return
    rows = [(*_row(one), console.age(one.used_at), "yes" if one.in_use else "no") for one in found]
    console.out_table(("LAYER", "SIZE", "LAST USED", "IN USE"), rows)


@app.command(epilog=console.EXIT_CODES)
def clear(
    names: Annotated[list[str] | None, typer.Argument(help="NAME, or NAME@sha256:…; all by default.")] = None,
    unused: Annotated[float, typer.Option(help="Keep what was asked for in so many days.", min=0)] = 0.0,
    most: Annotated[str | None, typer.Option(help="Stop once they take no more than this, such as 5GiB.")] = None,
    json: Json = False,
) -> None:
    """Remove tool layers, the longest unused first; never one that a sandbox has, nor of the last minute.

    A harness builds its own again at its next use. Without this command all take ORCHARD_TOOLS_LIMIT (20GiB) at most.

    Example: orchard tools clear --unused 30
    """
    from orchard.sandbox.toolcache import clear as clear_layers
    from orchard.sandbox.toolcache import layers
    from orchard.sandbox.types import parse_size

    found = layers()
    known = {word for one in found for word in (one.tool.name, str(one.tool))}
    if strangers := sorted(set(names or ()) - known):
        raise NotFound(f"no tool layer {', '.join(strangers)}", hint="`orchard tools ls` shows what there is")
    bound = None if most is None else parse_size(most, "most")
    gone = clear_layers(most=bound, rest=timedelta(days=unused), only=names or ())
    if json:
        console.out_json([_facts(one) for one in gone])
        return
    for one in gone:
        console.out("\t".join(_row(one)))
    wanted = [one for one in found if not names or one.tool.name in names or str(one.tool) in names]
    left = [one for one in wanted if one.tool not in {each.tool for each in gone}]
    busy = sum(one.in_use for one in left)
    console.say(f"removed {len(gone)} layers; {len(left)} stay, {busy} of them in use")


def _row(layer: Layer) -> tuple[str, str]:
    return str(layer.tool)[: len(layer.tool.name) + len("@sha256:") + 12], f"{layer.bytes / 1e6:.1f} MB"


def _facts(layer: Layer) -> dict[str, Any]:
    return {"layer": str(layer.tool), "bytes": layer.bytes, "used_at": layer.used_at, "in_use": layer.in_use}
