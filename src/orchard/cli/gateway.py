"""``orchard gateway``: record any agent that can be pointed at a model endpoint."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli import console
from orchard.cli.engines import KINDS, Answering
from orchard.cli.options import Json, Labels, pairs
from orchard.cli.stores import default_store, open_store
from orchard.core.config import env
from orchard.core.errors import InvalidArgument

if TYPE_CHECKING:
    from orchard.gateway import Budget, Session

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8421
app = typer.Typer(add_completion=False, invoke_without_command=True)


Record = Annotated[
    Path | None, typer.Option(help="Folder of the store; by default the one that `orchard trajectories` reads.")
]
Tokenizer = Annotated[Path | None, typer.Option(help="Folder of the tokenizer and template; vllm, sglang.")]
Device = Annotated[str | None, typer.Option(help="Where transformers computes: cpu (by default), cuda, cuda:1 ….")]
Dtype = Annotated[
    str | None, typer.Option(help="Of its weights: float32 (by default on a CPU), bfloat16 (elsewhere), float16.")
]
Mode = Annotated[str, typer.Option(help="splice keeps sampled ids as they are, template renders each prompt anew.")]
Replay = Annotated[str | None, typer.Option(help="Id of a rollout or session whose answers are given again.")]
Calls = Annotated[int | None, typer.Option(help="Replay so many calls; --engine answers the rest.", min=0)]
Exact = Annotated[bool, typer.Option("--exact", help="Replay: another date, time or random name is a difference too.")]
Model = Annotated[str, typer.Option(help="Its name there, whatever the agent asks for; for transformers a folder.")]
Name = Annotated[str, typer.Option(help="Name of the session in its URL; any key will do. Loopback only.")]
OPEN = "Open a session for each /s/NAME, or else each key, at its first call. Loopback only."
Turns = Annotated[int | None, typer.Option(help="Calls that a session may make.", min=1)]
Tokens = Annotated[int | None, typer.Option(help="Tokens that a session may use.", min=1)]
Seconds = Annotated[float | None, typer.Option(help="How long a session may last.", min=0)]
Cost = Annotated[float | None, typer.Option(help="What a session may cost, by --price.", min=0)]
TRAINING = "Leave out what changes the distribution (top-p, penalties …), and refuse answers without token ids."
Price = Annotated[str, typer.Option(help="PROMPT,COMPLETION[,CACHED]: of a million tokens, in any one currency.")]


@app.callback(epilog=console.EXIT_CODES)
def gateway(
    context: typer.Context,
    record: Record = None,
    engine: Annotated[str | None, typer.Option(help=f"What answers: {', '.join(KINDS)}.")] = None,
    base_url: Annotated[list[str] | None, typer.Option(help="Of the model server; repeatable for replicas.")] = None,
    model: Model = "",
    api_key_env: Annotated[str, typer.Option(help="Variable that holds the server's key.")] = "OPENAI_API_KEY",
    tokenizer: Tokenizer = None,
    device: Device = None,
    dtype: Dtype = None,
    mode: Mode = "splice",
    script: Annotated[Path | None, typer.Option(help="Steps in place of a model: .json, .toml or .py.")] = None,
    replay: Replay = None,
    calls: Calls = None,
    exact: Exact = False,
    store: Annotated[Path | None, typer.Option(help="Folder of the store with what is replayed.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free one.", min=0, max=65535)] = DEFAULT_PORT,
    session: Name = "",
    open_sessions: Annotated[bool, typer.Option("--open-sessions", help=OPEN)] = False,
    turns: Turns = None,
    tokens: Tokens = None,
    seconds: Seconds = None,
    cost: Cost = None,
    price: Price = "",
    training: Annotated[bool, typer.Option("--training", help=TRAINING)] = False,
    label: Labels = None,
) -> None:
    """Serve a model endpoint that records every call before it answers, until SIGINT or SIGTERM.

    It prints one line that points any agent at it. --label harness=NAME is how `orchard trajectories stats` counts it.

    Example: orchard gateway --record calls --engine openai --base-url http://127.0.0.1:8000/v1 --model my-model
    A session for each agent: orchard gateway --open-sessions …, then http://127.0.0.1:8421/s/ANY-NAME
    """
    if context.invoked_subcommand is not None:
        return
    named = bool(session or open_sessions)
    if named and host not in LOOPBACK:
        raise InvalidArgument(
            "a session's name can be guessed, so --session and --open-sessions are for loopback", field="host",
            hint="leave them out: the session's URL is a secret then",
        )  # fmt: skip
    if training and script is not None:
        raise InvalidArgument("a script gives no token ids: --training needs a model", field="training")
    answering = Answering(
        engine=engine, base_urls=base_url or (), model=model, api_key=env(api_key_env) or "", tokenizer=tokenizer,
        mode=mode, script=script, replay=replay, store=store, calls=calls, exact=exact,
        token_ids=training, device=device, dtype=dtype,
    )  # fmt: skip
    budget = _budget(turns, tokens, seconds, cost, price)
    place = _Place(record or default_store(), host, port, session, budget, pairs(label or [], "label"))
    place.training = training
    console.run_async(place.serve(answering, open_sessions))


def _budget(turns: int | None, tokens: int | None, seconds: float | None, cost: float | None, price: str) -> Budget:
    from orchard.gateway import Budget
    from orchard.gateway.session import Prices

    try:
        prices = [float(one) for one in price.split(",")] if price else []
    except ValueError:
        prices = [-1.0]
    if prices and (len(prices) not in (2, 3) or not all(one >= 0 for one in prices)):
        raise InvalidArgument(f"--price takes PROMPT,COMPLETION[,CACHED], not {price!r}", field="price")
    return Budget(turns, tokens, seconds, cost, Prices(*prices) if prices else None)


PARITY = ("HARNESS", "CALLS", "SERVED", "STOCK", "DIFFERING", "OTHER TEMPLATE")


@app.command("parity", epilog=console.EXIT_CODES)
def parity_(
    store: Annotated[Path, typer.Argument(help="Folder of a store, or of a run.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder of the model's tokenizer and chat template.")],
    json: Json = False,
) -> None:
    """Count, by harness, the tokens in which served prompts differ from what a stock server would have rendered.

    0 in template mode. In splice mode what differs is what a template leaves out of earlier turns, or spells otherwise.

    Example: orchard gateway parity runs/first --tokenizer models/qwen3
    """
    from orchard.cli.stores import every
    from orchard.gateway.parity import CallParity, parity
    from orchard.gateway.rendering.load import load_renderer
    from orchard.trajectories.stats import harness_of

    renderer, found = load_renderer(tokenizer), dict[str, list[CallParity]]()
    with open_store(store) as opened, console.working("rendering"):
        for trajectory in every(opened):
            found.setdefault(harness_of(trajectory), []).extend(parity(trajectory, renderer))
    rows = [
        {
            "harness": name, "calls": len(calls), "served": sum(call.served for call in calls),
            "stock": sum(call.stock for call in calls), "differing": sum(call.differing for call in calls),
            "other_template": sum(not call.template for call in calls),
        }
        for name, calls in sorted(found.items())
    ]  # fmt: skip
    if json:
        console.out_json(rows)
    else:
        console.out_table(PARITY, [[str(value) for value in row.values()] for row in rows])


class _Place:
    """Where and for whom the gateway serves."""

    def __init__(self, folder: Path, host: str, port: int, name: str, budget: Budget, labels: dict[str, str]) -> None:
        self._folder, self._host, self._port, self._name = folder, host, port, name
        self._budget, self._labels = budget, labels
        self.training = False

    async def serve(self, answering: Answering, open_sessions: bool) -> None:
        """Serve until a signal; what runs then is cut and recorded."""
        from orchard.cli.watch import Watched, watching
        from orchard.gateway import Access, Gateway, GatewayConfig

        engine, model = await answering.open(), answering.asked_model
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        store = Watched(self._folder)
        with store, watching(store) as calls:
            config = GatewayConfig(host=self._host, port=self._port, training=self.training)
            async with Gateway(store, {engine.name: engine}, config) as gateway:

                async def opens(name: str, key: str) -> Session:
                    labels = self._labels | ({"name": name} if name else {})
                    return await gateway.open_session(labels, self._budget, model=model, access=Access(name, key))

                if open_sessions:
                    gateway.at_first_use = opens
                    console.out(pointer(f"{gateway.url}/s/NAME", "any"))
                if self._name or not open_sessions:
                    made = await opens(self._name, "")
                    console.out(pointer(made.url, "any" if self._name else made.api_key))
                sys.stdout.flush()
                console.say(f"recording into {self._folder}; Ctrl-C ends it")
                await ended.wait()
        console.say(f"recorded {calls.summary} in {self._folder}")


def pointer(url: str, key: str) -> str:
    """Return the line that points an agent at a session, in the variables that most clients read."""
    return (
        f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key} ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key}"
        " ANTHROPIC_API_KEY="
    )
