"""``orchard eval``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.evaluation import run_plan, show, trouble
from orchard.cli.options import Json, RetryBroken, Url, values
from orchard.core.config import env
from orchard.core.errors import InvalidArgument

CPUS = os.cpu_count() or 1
if TYPE_CHECKING:
    from orchard.rollout.policies import Policy

app = typer.Typer(add_completion=False)
TRAINING = "Make rollouts to train on: the model's own distribution, token ids (vLLM), or refused."
EPILOG = "Exit codes: 0 all rollouts are judged · 1 tasks refused, rollouts not judged · 130/143 interrupted, resumable"


@app.command(epilog=EPILOG)
def evaluate(
    tasks: Annotated[list[str], typer.Argument(help="task.toml files, folders of them, or KIND:REFERENCE.")],
    run: Annotated[Path, typer.Option("--run", help="Folder of the run; the same again resumes it.")],
    harness: Annotated[list[str] | None, typer.Option("--harness", help="Repeatable; bash-loop by default.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="gold, noop, script:NAME, script:FILE.toml; repeatable.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Of an OpenAI-compatible server, up to /v1.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Model at --base-url; repeatable.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable that holds the server's key.")] = "OPENAI_API_KEY",
    sampling: Annotated[list[str] | None, typer.Option(help="NAME=JSON sent with each request.")] = None,
    attempts: Annotated[int, typer.Option(help="Rollouts of each task, harness and policy.", min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help="Id of a task to keep; repeatable.")] = None,
    image: Annotated[str | None, typer.Option(help="Base image of tasks that build on one.")] = None,
    at_once: Annotated[int, typer.Option(help="Agents at work at once.", min=1)] = 2 * CPUS,
    grade_at_once: Annotated[int, typer.Option(help="Rollouts graded at once.", min=1)] = CPUS,
    prepare_at_once: Annotated[int, typer.Option(help="Tasks prepared at once.", min=1)] = 1,
    tries: Annotated[int, typer.Option(help="Tries of a rollout that infrastructure breaks.", min=1)] = 3,
    option: Annotated[list[str] | None, typer.Option(help="HARNESS.NAME=JSON, an option of a harness.")] = None,
    validate: Annotated[bool, typer.Option(help="Let a gold and an empty run prove each task first.")] = True,
    training: Annotated[bool, typer.Option("--training", help=TRAINING)] = False,
    retry_broken: RetryBroken = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Evaluate policies on tasks under harnesses: table, JSON, and a page with every trajectory.

    Example: orchard eval release-pair:known --model my-model --base-url http://localhost:8000/v1 --attempts 4 --run out
    """
    from orchard.evals.run import Plan
    from orchard.rollout.jobs import Bounds
    from orchard.tasks.registry import load_tasks

    sources = [source for reference in tasks for source in load_tasks(reference, image=image)]
    unknown = sorted(set(only or ()) - {source.id for source in sources})
    if unknown:
        raise InvalidArgument(f"no task {', '.join(unknown)}", field="only")
    given = values(sampling or [], "sampling")
    policies = _policies(policy or [], base_url, model or [], api_key_env, given, token_ids=training)
    plan = Plan(
        sources=[source for source in sources if not only or source.id in only], harnesses=harness or ["bash-loop"],
        policies=policies, folder=run, attempts=attempts, training=training,
        bounds=Bounds(prepare_at_once, at_once, grade_at_once, tries), validate=validate,
        retry_broken=retry_broken, config=_by_harness(values(option or [], "option")),
    )  # fmt: skip
    report = console.run_async(run_plan(plan.checked(), url))
    show(report, run, json=json)
    lines = trouble(report)
    for line in lines:
        console.say(line)
    if lines:
        raise typer.Exit(1)


def _policies(
    names: list[str],
    base_url: str | None,
    models: list[str],
    api_key_env: str,
    sampling: dict[str, Any],
    *,
    token_ids: bool,
) -> list[Policy]:
    from orchard.rollout.policies import model_policy, policy

    found = [policy(name) for name in names]
    if models and not base_url:
        raise InvalidArgument("--model needs --base-url", field="base_url")
    if not found and not models:
        raise InvalidArgument("give --policy, or --model with --base-url", field="policy")
    key = env(api_key_env) or ""
    return found + [model_policy(base_url, name, key, sampling, token_ids=token_ids) for name in models if base_url]


def _by_harness(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        harness, dot, key = name.partition(".")
        if not dot:
            raise InvalidArgument(f"--option takes HARNESS.NAME=VALUE, not {name!r}", field="option")
        found.setdefault(harness, {})[key] = value
    return found
