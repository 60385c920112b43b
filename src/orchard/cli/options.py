"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from orchard.core.errors import InvalidArgument

Cpu = Annotated[float | None, typer.Option(help="CPUs, such as 1.5.")]
Memory = Annotated[str | None, typer.Option(help="Such as 2GiB.")]
Disk = Annotated[str | None, typer.Option(help="Most bytes of changes, such as 10GiB.")]
Pids = Annotated[int | None, typer.Option(help="Most processes and threads.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; repeatable.")]
User = Annotated[str | None, typer.Option(help="name, uid or uid:gid.")]
Workdir = Annotated[str | None, typer.Option(help="Folder that commands run in.")]
Cwd = Annotated[str | None, typer.Option(help="Folder to run in.")]
Labels = Annotated[list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE; repeatable.")]
Tools = Annotated[list[str] | None, typer.Option("--tool", help="NAME@sha256:…, a tool layer; repeatable.")]
Network = Annotated[str | None, typer.Option(help="none or open.")]
Ttl = Annotated[float | None, typer.Option(help="Seconds until it ends; 3600 by default.")]
MaxTtl = Annotated[float | None, typer.Option("--max-ttl", help="Seconds beyond which no extension goes.")]
Idle = Annotated[float | None, typer.Option(help="Seconds without activity until it ends.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds until the command and its tree are killed.")]
Stdin = Annotated[bool, typer.Option("--stdin", "-i", help="Pass this program's stdin on.")]
Tty = Annotated[bool, typer.Option("--tty", "-t", help="Run it on a terminal: this one, where there is one; with -i.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Print the process's id and leave it running.")]
RetryBroken = Annotated[
    bool, typer.Option("--retry-broken", help="Run again what infrastructure broke for good in this run.")
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None,
    typer.Option("--url", help="The service; ORCHARD_URL by default, else this machine. Its key: ORCHARD_API_KEY."),
]  # fmt: skip


def pairs(given: Sequence[str], field: str) -> dict[str, str]:
    """Return ``["A=b"]`` as a mapping.

    Raises:
        InvalidArgument: one has no ``=``, or a name comes twice.
    """
    found: dict[str, str] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign:
            raise InvalidArgument(f"--{field} takes NAME=VALUE, not {pair!r}", field=field)
        if name in found:
            raise InvalidArgument(f"--{field} {name} is given twice", field=field)
        found[name] = value
    return found


def values(given: Sequence[str], field: str) -> dict[str, Any]:
    """Return ``["a=1"]`` as a mapping of JSON values; what is no JSON is text."""
    found: dict[str, Any] = {}
    for name, text in pairs(given, field).items():
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found
