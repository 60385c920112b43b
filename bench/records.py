"""The record: calls a second that a store makes durable, and what a trajectory of 50 turns takes on disk.

Records a second: a number of writers, each of which waits until its call is on disk before it brings the next; the
floor is the same bytes appended to a file and synced one by one. On disk: a bash-tool conversation with token ids as
the gateway records it, a call at a time, beside the same calls each with its whole prompt, as a proxy that logs
requests stores them; both in stores of ours, so compressed.
"""

import asyncio
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench.frame import Row
from bench.place import Place
from orchard.gateway import Gateway
from orchard.rollout.toy_model import ToyModel
from orchard.trajectories import CallRecord, Store, Trajectory
from orchard.trajectories.stats import naive
from orchard.trajectories.store import dump

WRITERS = (1, 64)
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}  # fmt: skip
WORDS = Path(__file__).with_name("place.py").read_text().split()


def step(messages: Any, tools: Any) -> dict[str, Any]:
    """An agent's turn: a sentence and a command of usual length."""
    chance = random.Random(len(messages))
    command = " ".join(chance.choices(WORDS, k=chance.randrange(5, 40)))
    says = " ".join(chance.choices(WORDS, k=chance.randrange(5, 30)))
    return {"content": says, "calls": [{"name": "bash", "arguments": {"command": command}}]}


async def conversation(folder: Path, turns: int) -> Trajectory:
    """Let the gateway record one of ``turns`` turns, with 200 to 4,000 bytes of output each."""
    with Store(folder) as store:
        async with Gateway(store, {"script": ToyModel(step)}) as gateway, aiohttp.ClientSession() as http:
            session = await gateway.open_session(model="m")
            chance = random.Random(3)
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": " ".join(chance.choices(WORDS, k=400))},
                {"role": "user", "content": " ".join(chance.choices(WORDS, k=300))},
            ]
            for _ in range(turns):
                body = {"model": "m", "messages": messages, "tools": [TOOL]}
                async with http.post(f"{session.url}/v1/chat/completions", json=body) as got:
                    answer = (await got.json())["choices"][0]["message"]
                output = " ".join(chance.choices(WORDS, k=chance.randrange(20, 400)))
                identity = answer["tool_calls"][0]["id"]
                messages += [answer, {"role": "tool", "tool_call_id": identity, "content": output}]
        return store.session(session.id)


async def written(folder: Path, calls: list[CallRecord]) -> int:
    """Write the calls one after the other; return the bytes on disk."""
    with Store(folder) as store:
        for call in calls:
            await store.append(call)
    return sum(path.stat().st_size for path in (folder / "segments").iterdir())


async def a_second(folder: Path, call: CallRecord, writers: int, seconds: float) -> tuple[float, int]:
    """Return the records a second that so many writers make durable, and how many there were."""
    done = 0
    with Store(folder) as store:
        end = time.perf_counter() + seconds

        async def write() -> None:
            nonlocal done
            while time.perf_counter() < end:
                await store.append(call)
                done += 1

        start = time.perf_counter()
        await asyncio.gather(*(write() for _ in range(writers)))
        return done / (time.perf_counter() - start), done


def synced(path: Path, line: bytes, seconds: float) -> float:
    """Return how often a second a line is appended and synced, one by one."""
    done, end = 0, time.perf_counter() + seconds
    with path.open("ab", buffering=0) as file:
        while time.perf_counter() < end:
            file.write(line)
            os.fdatasync(file.fileno())
            done += 1
    return done / seconds


async def measure(place: Place) -> list[Row]:
    turns, seconds = (5, 0.2) if place.quick else (50, 5.0)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = await conversation(folder / "recorded", turns)
        call = found.calls[turns // 2]
        floor = await asyncio.to_thread(synced, folder / "floor", dump(call), seconds)
        for writers in WRITERS:
            rate, count = await a_second(folder / f"rate-{writers}", call, writers, seconds)
            title = f"records a second, durable, {writers} writer{'s' * (writers > 1)}"
            rows.append(Row(title, rate, "/s", count, floor={"append and fdatasync, one by one": floor}))
        ours = await written(folder / "ours", list(found.calls))
        every = [naive(found, one) for one in found.calls]
        theirs = await written(folder / "naive", every)
        text = sum(len(json.dumps(found.prompt(one.id))) for one in found.calls)
        note = f"the prompts of the {turns} calls together are {text / 1000:.0f} kB of JSON, without their ids"
        per_call = {"each call with its whole prompt and ids": theirs / 1000}
        rows.append(Row(f"on disk, {turns} turns with token ids", ours / 1000, "kB", turns, peers=per_call, note=note))
    return rows
