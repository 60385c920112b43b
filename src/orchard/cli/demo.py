"""``orchard demo``: real bugs of real libraries, agents that need no model, graded by the projects' own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchard.cli import console
from orchard.cli.evaluation import run_plan, show, trouble
from orchard.cli.options import Json, RetryBroken, Url

app = typer.Typer(add_completion=False)
HARNESSES = ("bash-loop", "mini-swe-agent")
ABOUT = """\
This runs {rollouts} rollouts on {place}: {tasks} bugs of published libraries ({ids}),
{policies} scripted agents ({names}), under {harnesses}.
It fetches, once and into {cache}: the libraries' two releases and pytest, {base}mini-swe-agent.
It makes sandboxes without network, records every model call, grades each patch by the project's own tests in a fresh
sandbox, and writes {folder}/report.html. Interrupt it when you like: the same command goes on from there."""


@app.command(epilog="Exit codes: 0 every agent did what its script says · 1 not so · 130/143 interrupted, resumable")
def demo(
    run: Annotated[Path, typer.Option("--run", help="Folder of the run; the same again resumes it.")] = Path("demo"),
    only: Annotated[list[str] | None, typer.Option(help="Id of a task to keep; repeatable.")] = None,
    harness: Annotated[list[str] | None, typer.Option(help="Harness to use; repeatable, both by default.")] = None,
    attempts: Annotated[int, typer.Option(help="Rollouts of each.", min=1)] = 1,
    image: Annotated[
        str | None, typer.Option(help="Image that the tasks stand on, with python3 and git; made here by default.")
    ] = None,
    retry_broken: RetryBroken = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Let scripted agents loose on real bugs, grade them, show the outcome as a table and a page.

    Example: orchard demo --run demo
    Elsewhere: orchard demo --url http://orchard.example:8420 --image python:3.12 --run demo
    """
    from orchard.core.config import cache_dir, env
    from orchard.core.errors import InvalidArgument
    from orchard.evals.run import Plan
    from orchard.rollout.policies import BUILT_IN, policy
    from orchard.tasks.registry import load_tasks

    service = url or env("ORCHARD_URL")
    if service and not image:
        raise InvalidArgument(
            "the service makes no image for the tasks to stand on", field="image",
            hint="give --image, one that it can pull, with python3 and git, such as python:3.12",
        )  # fmt: skip
    plan = Plan(
        sources=load_tasks("release-pair:known", only=only or None, image=image), harnesses=harness or list(HARNESSES),
        policies=[policy(name) for name in BUILT_IN], folder=run, attempts=attempts,
        title="Orchard demo: real bugs, scripted agents", retry_broken=retry_broken,
    ).checked()  # fmt: skip
    facts = {
        "rollouts": plan.total(), "tasks": len(plan.sources), "ids": ", ".join(one.id for one in plan.sources),
        "policies": len(plan.policies), "names": ", ".join(one.name for one in plan.policies),
        "harnesses": " and ".join(plan.harnesses), "cache": cache_dir(), "folder": run,
        "place": service or "this machine", "base": "" if image else "a small Debian, ",
    }  # fmt: skip
    console.say(ABOUT.format(**facts))
    report = console.run_async(run_plan(plan, url))
    show(report, run, json=json)
    lines = trouble(report) + [
        f"{cell.task}, {cell.harness}, {cell.policy} #{cell.attempt} must {cell.expect}, got {cell.reward}"
        for cell in report.surprises
    ]
    for line in lines:
        console.say(line)
    console.say("the demo failed" if lines else "gold scores 1, noop 0, and every near miss fails")
    if lines:
        raise typer.Exit(1)
