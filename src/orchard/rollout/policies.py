"""What answers the harness: a model, or a script that needs none (``gold``, ``noop``, ``script:NAME``)."""

from __future__ import annotations

import base64
import re
import shlex
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from orchard.core.errors import InvalidArgument, Unavailable, text_of
from orchard.core.validation import first_fault
from orchard.gateway.engine import Engine
from orchard.gateway.engines.script import ScriptEngine, bash_step
from orchard.harness.check import acted, end_call, shell_call
from orchard.harness.protocol import SUBMIT_MARKER
from orchard.tasks.model import Task

GOLD, NOOP = "gold", "noop"
SCRIPTS = Path(__file__).with_name("scripts")
PLACEHOLDERS = ("workdir", "submit", "gold_file", "gold_files", "save_gold_patch", "apply_gold_patch")
_BRACED = re.compile(r"(?<!\$)(?:\{\{([a-z_]+)\}\}|\{([a-z_]+)\})")
"""``{{word}}`` or ``{word}``, but not the shell's ``${word}``."""
_PATCH = "/tmp/gold.patch"
_END = "END_OF_PATCH"
_DONE = "I am done."
_APPLY = f"{{ git -c safe.directory='*' apply --whitespace=nowarn {_PATCH} 2>/dev/null || patch -p1 -s -i {_PATCH}; }}"


@dataclass(frozen=True)
class Policy:
    """What answers, under one name in the records."""

    name: str
    model: str
    """Name of the model that the harness asks for."""
    engine: Callable[[Task], Engine]
    """Called once for each task and run; the engine serves all attempts at it."""
    expect: Literal["pass", "fail"] | None = None
    """What a script's author says of it; None for a model, which may do either."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of each request that the harness is told to send."""
    script: str = ""
    """What it plays, where it plays a script: a resumed run refuses another under the same name."""
    server: str = ""
    """Where its model is asked, without what a URL may hold of secrets; kept with each rollout, and free to change."""
    check: Callable[[], Awaitable[None]] | None = None
    """Raises ``Unavailable`` if nothing answers where its engine asks; awaited once, before a run."""
    close: Callable[[], Awaitable[None]] | None = None
    """Releases what its engines share; awaited by whoever made the policy."""


class Step(BaseModel):
    """One turn of a scripted agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    say: str = ""
    run: str
    """A bash command, with placeholders in braces: see ``placeholders``. ``{{word}}`` stands for ``{word}`` itself."""

    @field_validator("run")
    @classmethod
    def _known(cls, run: str) -> str:
        unknown = [match[0] for match in _BRACED.finditer(run) if match[2] and match[2] not in PLACEHOLDERS]
        if unknown:
            words = f"there is no placeholder {unknown[0]} (there are {', '.join(PLACEHOLDERS)})"
            raise ValueError(f"{words}; write {{{unknown[0]}}} for the text itself")
        return run


class Script(BaseModel):
    """A scripted agent as its file says it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    expect: Literal["pass", "fail"]
    steps: list[Step]

    def engine(self, task: Task) -> ScriptEngine:
        """Return the engine that plays this script at ``task``, by whatever shell the harness gives it."""
        values = placeholders(task)
        steps = [(step.say, _filled(step.run, values).strip("\n")) for step in self.steps]

        def answer(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
            turn = acted(messages)
            if turn >= len(steps):  # to a harness that knows no marker, the last command was one like any other
                call = end_call(tools, _DONE)
                return {"content": _DONE, "calls": [call] if call else []}
            say, command = steps[turn]
            call = shell_call(tools, command)
            return {"content": say, "calls": [call]} if call else bash_step(command, say)

        return ScriptEngine(answer)


def load_script(path: Path) -> Script:
    """Read a script: TOML with ``about``, ``expect`` and ``[[steps]]`` of ``say`` and ``run``.

    Raises:
        InvalidArgument: the file is missing or wrong; the message says where.
    """
    try:
        return Script.model_validate(tomllib.loads(path.read_text()))
    except ValidationError as error:
        where, words = first_fault(error.errors())
        raise InvalidArgument(f"{path} is no script: {where}: {words}", field="policy") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"{path} is no script: {error}", field="policy") from error


def policy(name: str) -> Policy:
    """Return the scripted policy ``name``: ``gold``, ``noop``, ``script:NAME`` or ``script:PATH.toml``.

    Raises:
        InvalidArgument: there is none; the hint lists those there are.
    """
    short = name.removeprefix("script:")
    path = Path(short) if short.endswith(".toml") else SCRIPTS / f"{short}.toml"
    built_in = name in BUILT_IN or name.startswith("script:")
    if not built_in or not path.is_file():
        raise InvalidArgument(
            f"no policy {name!r}", field="policy", hint=f"known: {', '.join(BUILT_IN)}, or script:FILE.toml"
        )
    script = load_script(path)
    shown = name if path.parent == SCRIPTS else f"script:{path.stem}"
    return Policy(shown, "script", script.engine, script.expect, script=script.model_dump_json(exclude={"about"}))


def model_policy(
    base_url: str,
    model: str,
    api_key: str,
    sampling: Mapping[str, Any] | None = None,
    *,
    token_ids: bool = False,
) -> Policy:
    """Return a policy that asks ``model`` at any OpenAI-compatible server (``base_url`` with its ``/v1``).

    Args:
        base_url: of the server.
        model: as the server calls it.
        api_key: sent as bearer.
        sampling: parameters of each request.
        token_ids: ask for token ids and log-probabilities, without which nothing can be trained on (vLLM).

    Raises:
        InvalidArgument: ``base_url`` is no address.
    """
    from orchard.gateway.engines.openai import OpenAIEngine

    check_url(base_url)
    engine = OpenAIEngine(base_url, api_key=api_key, token_ids=token_ids)

    async def check() -> None:
        await check_server(base_url)

    return Policy(
        model, model, lambda task: engine, sampling=sampling or {}, server=_shown(base_url),
        check=check, close=engine.close,
    )  # fmt: skip


def _shown(base_url: str) -> str:
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def check_url(base_url: str) -> None:
    """Return if ``base_url`` can be the address of a model server.

    Raises:
        InvalidArgument: it cannot.
    """
    try:
        parts = urlsplit(base_url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of its port or its IPv6 address
        whole = False
    if not whole:
        hint = "give one such as http://127.0.0.1:8000/v1"
        raise InvalidArgument(f"{base_url!r} is no URL of a model server", field="base_url", hint=hint)


async def check_server(base_url: str) -> None:
    """Return if anything speaks HTTP at ``base_url``, whatever it says: a wrong address is told at once.

    Raises:
        Unavailable: nothing does.
    """
    timeout = aiohttp.ClientTimeout(total=15)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{base_url.rstrip('/')}/models"):
            return
    except (aiohttp.ClientError, TimeoutError) as error:
        words = f"no model server answers at {base_url}: {text_of(error)}"
        raise Unavailable(words, hint="start it, or give another --base-url") from error


def placeholders(task: Task) -> dict[str, str]:
    """Return what a script may name: never anything of ``task.secret``.

    ``{workdir}``, ``{submit}`` (the marker), ``{gold_file}`` and ``{gold_files}`` (what the gold patch touches),
    ``{save_gold_patch}`` and ``{apply_gold_patch}`` (commands).
    """
    patch = task.gold_patch or ""
    files = _touched(patch)
    first = next((file for file in files if file.endswith(".py")), files[0] if files else "README")
    return {
        "workdir": shlex.quote(task.workdir), "submit": SUBMIT_MARKER,
        "gold_file": shlex.quote(first), "gold_files": shlex.join(files),
        "save_gold_patch": _saving(patch), "apply_gold_patch": _APPLY,
    }  # fmt: skip


def _touched(patch: str) -> Sequence[str]:
    return [match[1] for match in re.finditer(r"^\+\+\+ b/([^\t\n]+)", patch, re.MULTILINE)]


def _saving(patch: str) -> str:
    """Return a command that writes the patch, as text where a shell's here-document carries it unchanged."""
    plain = patch.isprintable() or all(letter.isprintable() or letter in "\n\t" for letter in patch)
    if plain and patch.endswith("\n") and _END not in patch:
        return f"cat > {_PATCH} <<'{_END}'\n{patch}{_END}"
    coded = base64.encodebytes(patch.encode("utf-8", "surrogateescape")).decode()
    return f"base64 -d > {_PATCH} <<'{_END}'\n{coded}{_END}"


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _BRACED.sub(lambda match: values[match[2]] if match[2] else f"{{{match[1]}}}", text)


BUILT_IN = (GOLD, NOOP, "script:hardcode", "script:edit-tests", "script:commit-and-fix")
