"""``orchard trajectories``: look into a store of recorded rollouts."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.config import data_dir
from orchard.core.errors import NotFound
from orchard.trajectories import RolloutRow, Store, Trajectory

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show and export recorded trajectories.",
    epilog=console.EXIT_CODES,
)  # fmt: skip
COLUMNS = ("ID", "RUN", "TASK", "ATTEMPT", "HARNESS", "POLICY", "MODEL", "REWARD", "FAILURE", "TURNS", "SECONDS")
Folder = Annotated[Path | None, typer.Option("--store", help="Folder of a store, or of a run.")]
Where = Annotated[
    str, typer.Option(help="SQL condition on id, run, task, harness, model, reward, failure, turns … of a rollout.")
]


def _open(folder: Path | None) -> Store:
    folder = folder or data_dir() / "trajectories"
    for place in (folder, folder / "store"):
        if (place / "segments").is_dir():
            return Store(place)
    raise NotFound(f"there is no store in {folder}", hint="name it, or the folder of a run, with --store")


@app.command("ls", epilog=console.EXIT_CODES)
def list_(
    where: Where = "",
    limit: Annotated[int, typer.Option(help="Most rollouts to list.", min=1)] = 1000,
    store: Folder = None,
    json: Json = False,
) -> None:
    """List rollouts, oldest first.

    Example: orchard trajectories ls --where "reward = 1 AND harness = 'bash-loop'"
    """
    with _open(store) as opened:
        rows = list(opened.rollouts(where, limit=limit))
    if json:
        console.out_json([asdict(row) for row in rows])
        return
    console.out_table(COLUMNS, [_cells(row) for row in rows])


def _cells(row: RolloutRow) -> tuple[str, ...]:
    reward = "missing" if row.reward is None else f"{row.reward:g}"
    return (
        row.id, row.run, row.task, str(row.attempt), row.harness, row.policy, row.model, reward,
        row.failure or "-", str(row.turns), f"{row.seconds:.1f}",
    )  # fmt: skip


@app.command(epilog=console.EXIT_CODES)
def show(
    rollout: Annotated[str, typer.Argument(help="ID of a rollout")], store: Folder = None, json: Json = False
) -> None:
    """Show one trajectory: its outcome, and every message of its conversation.

    Example: orchard trajectories show ro-01j9zq3k7h0000000000
    """
    with _open(store) as opened:
        found = opened.trajectory(rollout)
    if json:
        console.out_json(_facts(found))
        return
    if found.rollout is not None:
        facts = found.rollout.model_dump(mode="json", exclude_none=True)
        for name in ("id", "run", "task", "attempt", "harness", "policy", "model", "stop", "failure"):
            if facts.get(name) not in (None, ""):
                console.out(f"{name:<10}{facts[name]}")
    for branch in found.branches():
        for message in branch.messages:
            console.out(f"\n── {message.get('role')}")
            console.out(_text(message))


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json_module.dumps(content, ensure_ascii=False) if content else ""
    tools = [call.get("function", call) for call in message.get("tool_calls") or ()]
    calls = [json_module.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join([text, *calls]).strip()


def _facts(found: Trajectory) -> dict[str, Any]:
    return {
        "rollout": found.rollout.model_dump(mode="json") if found.rollout else None,
        "branches": [{"calls": [call.id for call in branch.calls], "messages": branch.messages}
                     for branch in found.branches()],
        "calls": [call.model_dump(mode="json") for call in found.calls],
    }  # fmt: skip


@app.command(epilog=console.EXIT_CODES)
def export(
    output: Annotated[Path, typer.Argument(help="File to write: one JSON object a line.")],
    where: Where = "",
    store: Folder = None,
) -> None:
    """Write trajectories as JSON lines, each branch with its messages in OpenAI's chat form.

    Example: orchard trajectories export good.jsonl --where "reward = 1"
    """
    count = 0
    with _open(store) as opened, output.open("w", encoding="utf-8") as file:
        for row in opened.rollouts(where):
            file.write(json_module.dumps(_facts(opened.trajectory(row.id)), ensure_ascii=False) + "\n")
            count += 1
    console.say(f"{count} trajectories in {output}")
