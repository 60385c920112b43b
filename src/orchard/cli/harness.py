"""``orchard harness``: the agent programs that Orchard drives, here."""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.options import Json, Url, values

if TYPE_CHECKING:
    from orchard.harness.protocol import Harness
    from orchard.rollout.check import Report

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, install and check harnesses.", epilog=console.EXIT_CODES
)
COLUMNS = ("NAME", "VERSION", "PLACEMENT", "INSTALLED", "NEEDS OF THE IMAGE")
Names = Annotated[list[str], typer.Argument(help="Names of harnesses, as `orchard harness ls` lists them.")]
CHECK_CODES = "Exit codes: 0 every part of the record is complete · 1 a part is missing · as `orchard --help` otherwise"


@app.command("ls", epilog=console.EXIT_CODES)
def list_(json: Json = False) -> None:
    """List the harnesses: the pinned version, where it runs, whether it is on this machine, what it needs of the image.

    Example: orchard harness ls
    """
    from orchard.harness.registry import HARNESSES, create_harness

    async def facts(driver: Harness) -> dict[str, Any]:
        return {
            "name": driver.name, "version": await driver.version(), "placement": driver.placement,
            "installed": await driver.installed(), "needs": list(driver.needs),
        }  # fmt: skip

    async def every() -> list[dict[str, Any]]:
        return [await facts(create_harness(name)) for name in sorted(HARNESSES)]

    found = console.run_async(every())
    if json:
        console.out_json(found)
        return
    rows = [
        (one["name"], one["version"], one["placement"], "yes" if one["installed"] else "no", " ".join(one["needs"]))
        for one in found
    ]
    console.out_table(COLUMNS, rows)


@app.command(epilog=console.EXIT_CODES)
def install(
    names: Names,
    push: Annotated[
        str | None, typer.Option(help="HOST/PATH of a registry that the tool layers go to too, for a cluster's nodes.")
    ] = None,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="Speak HTTP with that registry.")] = False,
    json: Json = False,
) -> None:
    """Install harnesses on this machine, each once: what runs inside sandboxes as tool layers in the cache folder.

    Example: orchard harness install codex pi
    For a cluster: orchard harness install codex --push registry.example/tools
    """
    from orchard.harness.registry import create_harness
    from orchard.sandbox.toolpush import push as push_layer

    drivers = [create_harness(name) for name in names]

    async def one(driver: Harness) -> dict[str, Any]:
        start, version = time.monotonic(), await driver.version()
        with console.working(f"installing {driver.name} {version}"):
            await driver.install()
            layers = list(await driver.tools())
        pushed: list[str] = []
        for layer in layers if push else ():
            with console.working(f"pushing {layer.partition('@')[0]} to {push}"):
                pushed.append(await push_layer(layer, str(push), plain=plain_http))
        seconds = round(time.monotonic() - start, 1)
        return {"name": driver.name, "version": version, "layers": layers, "pushed": pushed, "seconds": seconds}

    async def every() -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        for driver in drivers:
            done.append(last := await one(driver))
            if not json:
                console.out(f"{last['name']} {last['version']} is installed ({last['seconds']} s)")
                for layer in [*last["layers"], *last["pushed"]]:
                    console.out(f"  {layer}")
        return done

    done = console.run_async(every())
    if json:
        console.out_json(done)


@app.command(epilog=CHECK_CODES)
def check(
    names: Names,
    image: Annotated[
        str | None,
        typer.Option(help="Image that the toy stands on, with a shell; a small Debian made here by default."),
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=JSON, an option of the harness; repeatable.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Folder that keeps the run; else it is gone.")] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Run each once more, answered from its record: at which turns it is the same."),
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Let each harness, the real program, mend a toy in a sealed sandbox, and say what of its record is complete.

    The model is a script, so no model server is needed; everything else is as in any rollout.

    Example: orchard harness check mini-swe-agent
    Your own agent: orchard harness check command --image my/image --option 'argv=["my-agent"]'
    """
    how: dict[str, Any] = {"image": image, "config": values(option or [], "option"), "replay": replay}

    async def work(folder: Path) -> list[Report]:
        from rich.console import Console

        from orchard import Orchard
        from orchard.rollout.check import check as check_one
        from orchard.rollout.progress import board

        async with Orchard(url) as orchard:
            found: list[Report] = []
            with board(Console(stderr=True), len(names) * (1 + replay)) as observe:
                for name in names:
                    found.append(await check_one(name, orchard, folder, **how, observe=observe))
            return found

    with nullcontext(str(run)) if run else tempfile.TemporaryDirectory(prefix="orchard-check-") as folder:
        reports = console.run_async(work(Path(folder)))
    if json:
        console.out_json([one.to_json() for one in reports])
    else:
        _show(reports)
    raise typer.Exit(0 if all(one.ok for one in reports) else 1)


def _show(reports: list[Report]) -> None:
    columns = ("HARNESS", "PART", "VERDICT", "WHAT THERE IS")
    rows = [(one.harness, line.name, line.verdict, line.detail) for one in reports for line in one.lines]
    console.out_table(columns, rows)
    for one in reports:
        if one.options:
            console.say(f"{one.harness} was checked with {', '.join(one.options)}")
        words = "its record is complete" if one.ok else "its record is not complete"
        console.say(
            f"{one.harness} {one.version} works here: {words}" if one.ok else f"{one.harness} {one.version}: {words}"
        )
