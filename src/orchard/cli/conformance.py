"""``orchard conformance``: judge a backend, or a service by its URL."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.config import env
from orchard.core.errors import CreateFailed, InvalidArgument

if TYPE_CHECKING:
    from orchard import Orchard
    from orchard.sandbox.conformance import Context, Outcome, Report

LINES = 60
KINDS = ("busybox", "static", "user", "foreign")
app = typer.Typer(add_completion=False)


@app.command(epilog="Exit codes: 0 every line passed or is excepted · 1 a line failed · as `orchard --help` otherwise")
def conformance(
    backend: Annotated[
        str, typer.Option(help="local, kubernetes, or a service's URL (its key: ORCHARD_API_KEY).")
    ] = "local",
    image: Annotated[
        str | None,
        typer.Option(
            help="Image with a shell and the core utilities; by default host, or a small Debian made here where an"
            " ordinary user cannot write to that."
        ),
    ] = None,
    special: Annotated[
        list[str] | None, typer.Option(help=f"KIND=IMAGE for {', '.join(KINDS)}; made here by default.")
    ] = None,
    line: Annotated[list[int] | None, typer.Option(help="Only these lines, 1 to 60; repeatable.")] = None,
    json: Json = False,
) -> None:
    """Check each behaviour that a sandbox must have, and say which passed, failed, or is excepted and why.

    Example: orchard conformance --backend http://127.0.0.1:8420 --image debian:12 --json
    """
    from orchard.sandbox.conformance import run

    if wrong := [number for number in line or () if not 1 <= number <= LINES]:
        raise InvalidArgument(f"lines are 1 to {LINES}, not {wrong[0]}", field="line")
    given = dict(_pair(text) for text in special or ())
    from orchard.sandbox.conformance.roots import special_images

    def progress(outcome: Outcome) -> None:
        console.say(f"{outcome.line:02d} {outcome.verdict:<15}{outcome.claim}")

    async def work() -> Report:
        with tempfile.TemporaryDirectory(prefix="orchard-") as folder:
            made = {} if backend == "kubernetes" else special_images(Path(folder))  # nodes do not see this machine
            base = image or await asyncio.to_thread(_default_image, backend)
            async with _context(backend, base, given) as context:
                context.images = await _taken(context.orchard, made) | given
                return await run(context, lines=line, progress=progress)

    report = console.run_async(work())
    if json:
        console.out_json(report.to_json())
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 1)


def _pair(text: str) -> tuple[str, str]:
    kind, sign, image = text.partition("=")
    if not sign or kind not in KINDS:
        raise InvalidArgument(
            f"--special takes KIND=IMAGE, KIND one of {', '.join(KINDS)}, not {text!r}", field="special"
        )
    return kind, image


async def _taken(orchard: Orchard, made: dict[str, str]) -> dict[str, str]:
    """Return the images made here if the backend has them: a service may refuse, or not see, this machine's files."""
    try:
        for image in list(made.values())[:1]:
            await orchard.backend.resolve_image(image)
    except (InvalidArgument, CreateFailed):
        return {}
    return made


def _default_image(backend: str) -> str:
    """The machine's own root where a sandbox may change it; to an ordinary user's sandbox its folders are read-only."""
    from orchard.sandbox.local.powers import find_powers
    from orchard.sandbox.local.rootfs import build_debian_image
    from orchard.tasks.base import PACKAGES

    return build_debian_image(PACKAGES) if backend == "local" and find_powers().rootless else "host"


def _context(backend: str, image: str, images: dict[str, str]) -> AbstractAsyncContextManager[Context]:
    from orchard.sandbox.conformance import targets
    from orchard.sandbox.local import LocalSettings

    if backend == "local":
        return targets.local(LocalSettings(), image, images)
    if backend == "kubernetes":
        if image == "host":
            raise InvalidArgument("a cluster has no image host", field="image", hint="--image REGISTRY/NAME:TAG")
        return targets.kubernetes(image, images)
    if not backend.startswith(("http://", "https://")):
        raise InvalidArgument(f"backend must be local, kubernetes or a URL, not {backend!r}", field="backend")
    return targets.service(backend, env("ORCHARD_API_KEY"), image, images)


def _show(report: Report) -> None:
    shown = [outcome for outcome in report.outcomes if outcome.verdict != "passed"]
    rows = [(f"{outcome.line:02d}", outcome.verdict, outcome.claim, outcome.detail) for outcome in shown]
    console.out_table(("LINE", "VERDICT", "CLAIM", "WHY"), rows)
    verdicts = ("passed", "failed", "excepted", "not applicable")
    console.out(", ".join(f"{report.count(verdict)} {verdict}" for verdict in verdicts))
