"""Plays a golden sample again: its requests come, and are answered, in the order in which they did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.overheard import unfolded

from orchard.gateway import ContextOverflow, Engine, EngineRequest, Gateway, Session
from orchard.gateway.engine import Part, Prompted
from orchard.trajectories import CallRecord, Store, Trajectory

Calls = Sequence[Mapping[str, Any]]


def calls_of(path: Path) -> list[dict[str, Any]]:
    """Return a sample's calls, each with its whole body."""
    return unfolded(json.loads(path.read_text())["calls"])


def order_of(path: Path) -> list[int]:
    """Return the number of each of a sample's calls twice: where it comes, and where it is answered."""
    facts = json.loads(path.read_text())
    return facts.get("order") or [at for at in range(len(facts["calls"])) for _ in range(2)]


class InTurn:
    """Answers request ``n`` as call ``n`` was answered, once it is let go.

    Args:
        calls: the sample's.
        engine_of: makes the engine that gives one answer.
    """

    name, policy_version = "in turn", None

    def __init__(self, calls: Calls, engine_of: Callable[[Mapping[str, Any]], Engine]) -> None:
        self._calls, self._engine_of = calls, engine_of
        self._count = 0
        self.here = [asyncio.Event() for _ in calls]
        """Set once a request has come."""
        self.go = [asyncio.Event() for _ in calls]
        self.prompts: list[list[int] | None] = [None for _ in calls]
        """The ids that were served, where the engine makes some."""

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        at = self._count
        self._count += 1
        self.here[at].set()
        await self.go[at].wait()
        if self._calls[at].get("error"):
            raise ContextOverflow(9_000, 8_192)
        async with aclosing(self._engine_of(self._calls[at]["answer"]).complete(request)) as parts:
            async for part in parts:
                if isinstance(part, Prompted):
                    self.prompts[at] = list(part.ids)
                yield part

    async def close(self) -> None: ...


async def replay(path: Path, store: Store, engine_of: Callable[[Mapping[str, Any]], Engine]) -> Replayed:
    """Send a sample's requests; where tool calls get other ids this time, later requests name those."""
    calls = calls_of(path)
    engine, ids, running = InTurn(calls, engine_of), dict[str, str](), dict[int, asyncio.Task[str]]()
    async with (
        Gateway(store, {"e": engine}) as gateway,
        aiohttp.ClientSession() as http,
        asyncio.TaskGroup() as group,
    ):
        session = await gateway.open_session()
        for at in order_of(path):
            if at in running:
                engine.go[at].set()
                await running[at]
                ids |= _other_ids(calls[at], _recorded(store, session, at))
            else:
                running[at] = group.create_task(_send(http, session, calls[at], ids))
                await engine.here[at].wait()
    said = [running[at].result() for at in range(len(calls))]
    return Replayed(calls, said, store.session(session.id), engine.prompts)


async def _send(http: aiohttp.ClientSession, session: Session, call: Mapping[str, Any], ids: Mapping[str, str]) -> str:
    body = json.dumps(call["body"])
    for old, new in ids.items():
        body = body.replace(f'"{old}"', f'"{new}"')
    async with http.post(session.url + call["path"], data=body, headers=call["headers"]) as got:
        said = await got.text()
        assert (got.status == 200) != bool(call.get("error")), said
        return said


def _recorded(store: Store, session: Session, index: int) -> CallRecord:
    return next(call for call in store.session(session.id).calls if call.index == index)


def _other_ids(call: Mapping[str, Any], now: CallRecord) -> dict[str, str]:
    old, new = (call["answer"] or {}).get("tool_calls", []), (now.answer or {}).get("tool_calls", [])
    return {one["id"]: other["id"] for one, other in zip(old, new, strict=True) if one["id"] != other["id"]}


class Replayed:
    """What came of it: all lists have one entry for each call."""

    def __init__(
        self, calls: Calls, said: Sequence[str], found: Trajectory, prompts: Sequence[list[int] | None]
    ) -> None:
        self.calls, self.said, self.found, self.prompts = calls, said, found, prompts
