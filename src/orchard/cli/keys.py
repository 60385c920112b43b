"""``orchard keys``: the keys file of ``orchard serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.cli.serve import keys_path

app = typer.Typer(add_completion=False, no_args_is_help=True, epilog=console.EXIT_CODES)
File = Annotated[Path | None, typer.Option("--keys", help="The keys file; by default that of this user.")]


@app.callback()
def _group() -> None:
    r"""API keys of `orchard serve`.

    The file holds one [\[keys]] table a key: name, sha256 (of the key), tenant, and where wanted quota (sandboxes alive
    at once, for the whole tenant) and rate (requests a second). To revoke a key delete its table; a running service
    follows within a second.
    """


@app.command(epilog=console.EXIT_CODES)
def new(
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    tenant: Annotated[str | None, typer.Option(help="Whose sandboxes it sees; the key's name by default.")] = None,
    quota: Annotated[int | None, typer.Option(help="Most sandboxes alive at once.", min=0)] = None,
    rate: Annotated[float | None, typer.Option(help="Most requests a second.")] = None,
    keys: File = None,
) -> None:
    """Make a key and print it, this once: only its hash is kept.

    Example: orchard keys new alice --quota 50
    """
    from orchard.service.keys import KeyRing

    console.out(KeyRing(keys or keys_path()).add(name, tenant=tenant, quota=quota, rate=rate))


@app.command("ls", epilog=console.EXIT_CODES)
def list_(keys: File = None, json: Json = False) -> None:
    """List the keys, without the keys themselves.

    Example: orchard keys ls
    """
    from orchard.service.keys import KeyRing

    found = KeyRing(keys or keys_path()).keys
    if json:
        console.out_json([key.model_dump(exclude={"sha256"}) for key in found])
        return
    rows = [(key.name, key.tenant, str(key.quota or "-"), str(key.rate or "-")) for key in found]
    console.out_table(("NAME", "TENANT", "QUOTA", "RATE"), rows)
