"""``orchard trajectories``: look into a store of recorded rollouts and sessions."""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.cli.stores import Odd, open_store, recorded
from orchard.core.errors import InvalidArgument
from orchard.trajectories import RolloutRow, SessionRow, Store, Trajectory

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show, count and export recorded trajectories.",
    epilog=console.EXIT_CODES,
)  # fmt: skip
COLUMNS = ("ID", "RUN", "TASK", "ATTEMPT", "HARNESS", "POLICY", "MODEL", "REWARD", "FAILURE", "TURNS", "SECONDS")
SESSIONS = ("SESSION", "OPENED", "LIVE", "LABELS")
STATS = (
    "HARNESS",
    "ROLLOUTS",
    "SESSIONS",
    "CALLS",
    "SAMPLES EACH",
    "FORKS",
    "TRAINED",
    "BESIDE THE WORK",
    "BYTES",
    "NAIVE",
)
FORMATS = ("jsonl", "openai", "samples", "parquet", "atif")
Folder = Annotated[Path | None, typer.Option("--store", help="Folder of a store, or of a run.")]
Where = Annotated[
    str, typer.Option(help="SQL condition on id, run, task, harness, model, reward, failure, turns … of a rollout.")
]
Sessions = Annotated[
    bool, typer.Option("--sessions", help="Those without a rollout in place of rollouts: of `orchard gateway`, or cut.")
]


@app.command("ls", epilog=console.EXIT_CODES)
def list_(
    where: Where = "",
    limit: Annotated[int, typer.Option(help="Most rollouts to list.", min=1)] = 1000,
    sessions: Sessions = False,
    store: Folder = None,
    json: Json = False,
) -> None:
    """List rollouts, oldest first; or sessions that belong to none, as `orchard gateway` records them.

    Example: orchard trajectories ls --where "reward = 1 AND harness = 'bash-loop'"
    """
    with open_store(store) as opened:
        loose = opened.aborted()
        rows = [] if sessions else list(opened.rollouts(where, limit=limit))
    if sessions:
        found = loose[:limit]
        if json:
            console.out_json([asdict(row) for row in found])
        else:
            console.out_table(SESSIONS, [_session_cells(row) for row in found])
        return
    if json:
        console.out_json([asdict(row) for row in rows])
        return
    console.out_table(COLUMNS, [_cells(row) for row in rows])
    if loose:
        console.say(f"{len(loose)} sessions belong to no rollout: --sessions lists them")


def _cells(row: RolloutRow) -> tuple[str, ...]:
    reward = "missing" if row.reward is None else f"{row.reward:g}"
    return (
        row.id, row.run, row.task, str(row.attempt), row.harness, row.policy, row.model, reward,
        row.failure or "-", str(row.turns), f"{row.seconds:.1f}",
    )  # fmt: skip


def _session_cells(row: SessionRow) -> tuple[str, ...]:
    labels = " ".join(f"{name}={value}" for name, value in row.labels.items())
    return row.session, row.at.isoformat(timespec="seconds"), "yes" if row.live else "no", labels or "-"


@app.command(epilog=console.EXIT_CODES)
def show(
    rollout: Annotated[str, typer.Argument(help="ID of a rollout, or of a session")],
    store: Folder = None,
    json: Json = False,
) -> None:
    """Show one trajectory: its outcome, and every message of its conversations.

    Example: orchard trajectories show ro-01j9zq3k7h0000000000
    """
    from orchard.trajectories.formats.whole import facts

    with open_store(store) as opened:
        found = recorded(opened, rollout)
    if json:
        console.out_json(facts(found))
        return
    for name, value in _head(found):
        console.out(f"{name:<10}{value}")
    for branch in found.branches():
        for message in branch.messages:
            console.out(f"\n── {message.get('role')}")
            console.out(_text(message))


def _head(found: Trajectory) -> Iterator[tuple[str, Any]]:
    if found.rollout is None:
        yield "session", found.session
        for name, value in next((one.labels for one in found.sessions), {}).items():
            yield name, value
        yield "calls", len(found.calls)
        return
    facts = found.rollout.model_dump(mode="json", exclude_none=True)
    for name in ("id", "run", "task", "attempt", "harness", "policy", "model", "stop", "failure"):
        if facts.get(name) not in (None, ""):
            yield name, facts[name]


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json_module.dumps(content, ensure_ascii=False) if content else ""
    asked = message.get("tool_calls") or ()
    tools = [call.get("function", call) if isinstance(call, dict) else call for call in asked]
    calls = [json_module.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join([text, *calls]).strip()


def _chosen(store: Store, where: str, sessions: bool, odd: Odd) -> Iterator[Trajectory]:
    """Yield what is asked for, one trajectory in memory at a time."""
    if sessions and where:
        raise InvalidArgument("--where is on rollouts, and --sessions belong to none", field="where")
    reads = store.session if sessions else store.trajectory
    names = [row.session for row in store.aborted()] if sessions else (row.id for row in store.rollouts(where))
    for name in names:
        yield from odd.of(name, "read", lambda name=name: [reads(name)])


@app.command("stats", epilog=console.EXIT_CODES)
def stats_(where: Where = "", sessions: Sessions = False, store: Folder = None, json: Json = False) -> None:
    """Count, harness by harness: calls, samples, forks by cause, tokens trained, and bytes on disk.

    Bytes are those of calls compressed one by one; NAIVE is the same with the whole prompt in each.

    Example: orchard trajectories stats --store runs/first
    """
    from orchard.trajectories.stats import stats

    with open_store(store) as opened, console.working("reading"):
        odd = Odd()
        found = stats(_chosen(opened, where, sessions, odd))
    if json:
        console.out_json([one.to_json() for one in found])
        odd.tell()
        return
    rows: list[tuple[str, ...]] = []
    for one in found:
        many = max(one.rollouts + one.sessions, 1)
        beside = one.purposes.copy()
        del beside["agent"]
        rows.append(
            (one.harness, str(one.rollouts), str(one.sessions), str(one.calls),
             f"{one.samples / many:.2f}" if one.sampled_tokens else f"({one.conversations / many:.2f})",
             _counted(one.forks), f"{one.trained_tokens}/{one.sample_tokens}", _counted(beside),
             str(one.stored_bytes), str(one.naive_bytes))
        )  # fmt: skip
    console.out_table(STATS, rows)
    if any(not one.sampled_tokens for one in found):
        console.say("(…): no token ids were recorded, so these are conversations, which would be samples")
    odd.tell()


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counter.most_common()) or "-"


@app.command(epilog=console.EXIT_CODES)
def export(
    output: Annotated[Path, typer.Argument(help="File to write.")],
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "jsonl",
    where: Where = "",
    sessions: Sessions = False,
    side_calls: Annotated[
        bool, typer.Option("--side-calls", help="Also conversations beside the work: titles, summaries.")
    ] = False,
    store: Folder = None,
) -> None:
    """Write trajectories: jsonl (all that is known), openai (messages), samples (token ids), parquet, or atif.

    One that cannot be written is named and left out, and the exit code is 1.

    Example: orchard trajectories export good.jsonl --format openai --where "reward = 1"
    """
    if format_ not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, not {format_!r}", field="format")
    odd = Odd()
    with open_store(store) as opened:
        count = _write(_chosen(opened, where, sessions, odd), output, format_, side_calls, odd)
    what = {"jsonl": "trajectories", "samples": "samples"}.get(format_, "conversations")
    console.say(f"{count} {what} in {output}")
    odd.tell()


def _name(found: Trajectory) -> str:
    return found.rollout.id if found.rollout else found.session


def _write(found: Iterator[Trajectory], output: Path, name: str, side_calls: bool, odd: Odd) -> int:
    from orchard.trajectories.formats import atif, openai_messages, parquet, samples, whole

    makes: Mapping[str, Callable[[list[Trajectory]], Iterator[Any]]] = {
        "jsonl": whole.write, "samples": samples.write,
        "openai": lambda one: openai_messages.write(one, side_calls=side_calls),
        "atif": lambda one: atif.write(one, side_calls=side_calls),
        "parquet": lambda one: parquet.rows(one, side_calls=side_calls),
    }  # fmt: skip
    made = (line for one in found for line in odd.of(_name(one), "written", lambda one=one: makes[name]([one])))
    if name == "parquet":
        return parquet.write_rows(made, output)
    count = 0
    with output.open("w", encoding="utf-8") as file:
        for line in made:
            file.write(line + "\n")
            count += 1
    return count
