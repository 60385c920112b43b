"""What the gateway adds to a call: 64 sessions at once, an engine that answers in 1 s, every record synced.

Three processes: the engine, the gateway in front of it, and the clients, which ask the engine directly and through the
gateway in turn, with equal bodies and the same spread of starts. The client
is aiohttp. Floor: the engine asked directly.
"""

import asyncio
import multiprocessing
import random
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bench.frame import Row, Target, p50, p99
from bench.place import Place
from orchard.gateway import Gateway, OpenAIEngine
from orchard.trajectories import Store

TARGET = Target(5.0)
ROUNDS = 2
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


def serve_engine(pipe: Connection, seconds: float) -> None:
    asyncio.run(_serve_engine(pipe, seconds))


async def _serve_engine(pipe: Connection, seconds: float) -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        await asyncio.sleep(seconds)
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
        message = {"role": "assistant", "content": "I look at the files first.", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 900, "completion_tokens": 30}})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    await asyncio.to_thread(pipe.recv)


def serve_gateway(pipe: Connection, engine_url: str, folder: str, sessions: int) -> None:
    asyncio.run(_serve_gateway(pipe, engine_url, folder, sessions))


async def _serve_gateway(pipe: Connection, engine_url: str, folder: str, sessions: int) -> None:
    with Store(Path(folder)) as store:
        async with Gateway(store, {"openai": OpenAIEngine(engine_url)}) as gateway:
            opened = [await gateway.open_session(model="m") for _ in range(sessions)]
            spent = time.process_time()
            pipe.send([session.url + "/v1" for session in opened])
            await asyncio.to_thread(pipe.recv)
            pipe.send((sum(session.state.turns for session in opened), time.process_time() - spent))


async def converse(http: aiohttp.ClientSession, url: str, turns: int, times: list[float]) -> None:
    """A harness of the bash-tool kind: a system prompt, a task, then a command's output each turn."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s" * 3000},
        {"role": "user", "content": "t" * 2000},
    ]
    for turn in range(turns):
        start = time.perf_counter()
        async with http.post(
            url + "/chat/completions", json={"model": "m", "messages": messages, "tools": TOOLS}
        ) as got:
            answer = (await got.json())["choices"][0]["message"]
        times.append(time.perf_counter() - start)
        messages += [answer, {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"{turn}" * 1000}]


async def times_of(urls: list[str], turns: int, spread: float) -> list[float]:
    times: list[float] = []
    chance = random.Random(7)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(url: str, delay: float) -> None:
            await asyncio.sleep(delay)
            await converse(http, url, turns, times)

        await asyncio.gather(*(one(url, chance.uniform(0, spread)) for url in urls))
    return times


def run(sessions: int, turns: int, seconds: float) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    engine_pipe, engine_end = spawn.Pipe()
    engine = spawn.Process(target=serve_engine, args=(engine_end, seconds))
    engine.start()
    engine_url = engine_pipe.recv()
    with tempfile.TemporaryDirectory() as folder:
        gateway_pipe, gateway_end = spawn.Pipe()
        gateway = spawn.Process(target=serve_gateway, args=(gateway_end, engine_url, folder, sessions))
        gateway.start()
        urls = gateway_pipe.recv()
        direct, through = list[float](), list[float]()
        for _ in range(ROUNDS):
            direct += asyncio.run(times_of([engine_url] * sessions, turns, seconds))
            through += asyncio.run(times_of(urls, turns, seconds))
        gateway_pipe.send(None)
        recorded, cpu = gateway_pipe.recv()
        gateway.join()
        size = sum(path.stat().st_size for path in (Path(folder) / "segments").iterdir())
    engine_pipe.send(None)
    engine.join()
    assert recorded == sessions * turns * ROUNDS, "every call is recorded"

    return {"direct": direct, "through": through, "calls": recorded, "cpu_s": cpu, "bytes": size}


async def measure(place: Place) -> list[Row]:
    sessions, turns, seconds = (4, 2, 0.1) if place.quick else (64, 10, 1.0)
    got = await asyncio.to_thread(run, sessions, turns, seconds)
    name = f"gateway overhead a call, {sessions} sessions at once"
    note = f"{got['cpu_s'] / got['calls'] * 1000:.2g} ms of CPU and {got['bytes'] // got['calls']} bytes on disk a call"
    beyond = f"beyond its {seconds:g} s"
    direct, through = ({of: (of(got[way]) - seconds) * 1000 for of in (p50, p99)} for way in ("direct", "through"))
    return [
        Row(f"{name}, p50", through[p50] - direct[p50], "ms", got["calls"], TARGET,
            {f"engine asked directly, {beyond}": direct[p50]}, note=note),
        Row(f"{name}, a call beyond the engine's time, p99", through[p99], "ms", got["calls"],
            floor={f"engine asked directly, {beyond}": direct[p99]}),
    ]  # fmt: skip
