"""Writes down what a harness says to the gateway, cleaned of what is of one machine or one run alone."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.support.harassed import Harassed

from orchard.gateway.dialects import DIALECTS
from orchard.trajectories import Store, Trajectory

GOLDEN = Path(__file__).parents[1] / "contract" / "gateway" / "golden"
_LONG, _HEAD = 240, 120
"""Longer texts (prompts, descriptions of tools) keep their beginning, their length and a digest."""
_KEPT = re.compile(r"x-(?!api-key|stainless|forwarded)|anthropic-|thread-id|session.id")
_NAMED = re.compile(
    r"(?P<uuid>(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)"
    r"|(?P<digest>\b[0-9a-f]{40,64}\b)"
    r"|(?P<id>\b(?:run|se|call|msg|resp|chatcmpl)-[0-9a-hjkmnp-tv-z]{20,}\b|\bses_[0-9A-Za-z]{20,}\b)"
)


class Overheard(Harassed):
    """A gateway without faults whose model requests are kept in ``heard``, in the order in which they came."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, ())
        self.heard: list[dict[str, Any]] = []

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and any(request.path.endswith(path) for path in DIALECTS):
            path = "/" + request.raw_path.split("/", 3)[3]
            headers = {name.lower(): value for name, value in request.headers.items() if _KEPT.match(name.lower())}
            self.heard.append({"path": path, "headers": headers, "body": json.loads(await request.read())})
        return await super()._pass_on(request)


def sample(
    harness: str, version: str, heard: list[dict[str, Any]], found: Trajectory, kept: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the golden sample of one run: each request, what answered it, and how it was placed.

    ``order``, where some ran beside each other: the number of each call twice, where it came and where it ended.

    Args:
        harness: its name.
        version: its version.
        heard: what it said, in the order of the calls.
        found: what was recorded of it.
        kept: passages that longer texts keep, since a purpose is told by them.
    """
    placed = [
        {"matched": call.matched, "purpose": call.purpose, "kept": call.kept_messages, "answer": call.answer}
        | ({"error": call.error_code} if call.status != "ok" else {})
        for call in found.calls
    ]
    calls = Scrubbing(kept).clean([asked | facts for asked, facts in zip(heard, placed, strict=True)])
    order = _order(found)
    beside = {"order": order} if order != sorted(order) else {}
    return {"harness": harness, "version": version, **beside, "calls": folded(calls)}


def _order(found: Trajectory) -> list[int]:
    ends = [(call.times.engine_end or call.times.received, 1, at) for at, call in enumerate(found.calls)]
    comes = [(call.times.received, 0, at) for at, call in enumerate(found.calls)]
    return [at for _, _, at in sorted([*comes, *ends])]


def folded(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls without what each body has of an earlier one (``like``; else the one before).

    ``same`` says of each such field how many items of the list are the same; None: all of it.
    """
    bodies = [call["body"] for call in calls]
    short: list[dict[str, Any]] = []
    for at, call in enumerate(calls):
        tries = [
            {**_fold(bodies[at], bodies[like]), **({"like": like} if like != at - 1 else {})} for like in range(at)
        ]
        found = min([_fold(bodies[at], {}), *reversed(tries)], key=lambda one: len(json.dumps(one)))
        short.append({**call, **found})
    return short


def _fold(body: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    same: dict[str, int | None] = {}
    rest: dict[str, Any] = {}
    for name, value in body.items():
        if name in before and before[name] == value:
            same[name] = None
        elif isinstance(value, list) and isinstance(before.get(name), list):
            pairs = zip(value, before[name], strict=False)
            same[name] = kept = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            rest[name] = value[kept:]
        else:
            rest[name] = value
    return {"same": same, "body": rest}


def unfolded(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Undo ``folded``."""
    whole: list[dict[str, Any]] = []
    for at, call in enumerate(calls):
        body = dict(call["body"])
        before: dict[str, Any] = whole[call.get("like", at - 1)]["body"] if at else {}
        for name, kept in call["same"].items():
            body[name] = before[name] if kept is None else [*before[name][:kept], *body[name]]
        whole.append({**call, "body": body})
    return whole


class Scrubbing:
    """Replaces what differs from run to run, the same by the same throughout a sample.

    Args:
        kept: passages that longer texts keep.
    """

    def __init__(self, kept: Sequence[str] = ()) -> None:
        self._kept = kept
        self._seen: dict[str, str] = {}
        self._words = {platform.node(): "machine", platform.release(): "6.0.0", str(Path.home()): "/home/user"}

    def clean(self, value: Any) -> Any:
        """Return JSON without names of one machine or one run."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.clean(one) for one in value]
        if isinstance(value, Mapping):
            return {self._text(name): self.clean(one) for name, one in value.items()}
        return value

    def _text(self, text: str) -> str:
        for word, other in self._words.items():
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", other, text)
        text = _NAMED.sub(self._stand_in, text)
        if len(text) <= _LONG or text.startswith("{"):
            return text
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        kept = "".join(f" … {passage}" for passage in self._kept if passage in text[_HEAD:])
        return f"{text[:_HEAD]}{kept} … ({len(text)} characters, {digest})"

    def _stand_in(self, found: re.Match[str]) -> str:
        known, number = found[0], len(self._seen) + 1
        if found["uuid"]:
            stand_in = f"00000000-0000-4000-8000-{number:012d}"
        elif found["digest"]:
            stand_in = f"{number:0{len(known)}d}"
        else:
            stand_in = f"{re.split('[-_]', known)[0]}-{number:020d}"
        return self._seen.setdefault(known, stand_in)
