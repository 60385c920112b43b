"""The ``orchard`` command. Sub-commands are imported when they are used, so that ``orchard --help`` is quick."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchard.cli import console
from orchard.core.errors import OrchardError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("orchard.cli.serve", "Serve sandboxes of this machine over HTTP."),
    "sandbox": ("orchard.cli.sandbox", "Make, use and end sandboxes."),
    "image": ("orchard.cli.image", "Images in this machine's store."),
    "keys": ("orchard.cli.keys", "API keys of `orchard serve`."),
    "gateway": ("orchard.cli.gateway", "Record any agent that can be pointed at a model endpoint."),
    "trajectories": ("orchard.cli.trajectories", "List, show and export recorded trajectories."),
    "harness": ("orchard.cli.harness", "List, install and check agent programs."),
    "tools": ("orchard.cli.tools", "List and clear the tool layers on this machine."),
    "demo": ("orchard.cli.demo", "Scripted agents on real bugs of real libraries, graded and shown."),
    "eval": ("orchard.cli.eval", "Evaluate a model or scripted agents on tasks under harnesses."),
    "report": ("orchard.cli.report", "Report on a run as it stands."),
    "cost": ("orchard.cli.cost", "Estimate money for sandboxes on nodes, beside services that bill them."),
    "conformance": ("orchard.cli.conformance", "Judge a backend or a service by the behaviours of a sandbox."),
    "reap": ("orchard.cli.reap", "Remove Pods of sandboxes whose time is over."),
    "deploy": ("orchard.cli.deploy", "Say what a Kubernetes cluster lacks."),
    "doctor": ("orchard.cli.doctor", "Say what this machine can and cannot do, and why."),
}
"""Name -> module whose ``app`` it is, and its line in ``orchard --help``. A new command is one line here."""


class _Lazy(TyperGroup):
    """A group whose commands are imported when they are used, not when they are listed."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or for a listing only its help."""
        if cmd_name not in COMMANDS:
            return None
        module, text = COMMANDS[cmd_name]
        if self._listing:
            return typer.main.get_command(_stub(cmd_name, text))
        return typer.main.get_command(importlib.import_module(module).app)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing the commands."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _stub(name: str, text: str) -> typer.Typer:
    stub = typer.Typer(add_completion=False)
    stub.command(name, help=text)(lambda: None)
    return stub


app = typer.Typer(cls=_Lazy, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("orchard-env"))
        raise typer.Exit


@app.callback(epilog=console.EXIT_CODES)
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Orchard turns tasks, an agent harness and a model into trajectories, and those into a better model.

    The service is named by ORCHARD_URL and ORCHARD_API_KEY; without them sandboxes are made on this machine.
    """
    console.set_debug(debug)


def run() -> None:
    """Run the command line; the entry point of ``orchard``."""
    try:
        app()
    except OrchardError as error:
        if console.debugging():
            raise
        console.show_error(error)
        sys.exit(console.code_of(error))
    except OSError as error:
        if console.debugging():
            raise
        console.show_os_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # the seam to the person: a fault of ours is one sentence too
        if console.debugging():
            raise
        console.say(f"error: a fault of Orchard: {type(error).__name__}: {error}")
        console.say("hint: `orchard --debug …` shows where; please report it")
        sys.exit(1)
