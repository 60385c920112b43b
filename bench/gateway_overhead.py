"""What the gateway adds to a call: 1, 16 and 64 sessions at once, an engine that answers in 1 s, every record synced.

Four processes: the engine, the gateway in front of it, a proxy that only passes bytes on, and the clients, which ask
the engine directly, through the proxy and through the gateway in turn, with equal bodies. Client, proxy and engine
are aiohttp.

Sessions of a run start when their sandboxes are ready, and no engine takes the same time for each answer: the starts
are spread over 1 s, and the engine takes 0.5 to 1.5 s, as the request says. (Were it always 1 s, all sessions that
once waited for the same slow sync would ask at the same moment ever after.) A row of its own is just that: all start at
the same moment and the engine always takes 1 s, so that a call waits mostly for the CPU time of the others. Figures are
the time of a call beyond its engine's time.

Floors: the engine asked directly; what the proxy adds; a record's size appended to a file and synced.
"""

import asyncio
import contextlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
SYNCS = 50
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


def serve_engine(pipe: Connection) -> None:
    asyncio.run(_serve_engine(pipe))


async def _serve_engine(pipe: Connection) -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        await asyncio.sleep(body["seconds"])
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
        message = {"role": "assistant", "content": "I look at the files first.", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 900, "completion_tokens": 30}})

    await _serve(pipe, answer)


async def _serve(pipe: Connection, answer: Callable[[web.Request], Awaitable[web.Response]]) -> None:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    await asyncio.to_thread(pipe.recv)
    await runner.cleanup()


def serve_proxy(pipe: Connection, engine_url: str) -> None:
    asyncio.run(_serve_proxy(pipe, engine_url))


async def _serve_proxy(pipe: Connection, engine_url: str) -> None:
    url, headers = engine_url + "/chat/completions", {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def answer(request: web.Request) -> web.Response:
            async with http.post(url, data=await request.read(), headers=headers) as got:
                return web.Response(body=await got.read(), content_type="application/json")

        await _serve(pipe, answer)


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


async def converse(http: aiohttp.ClientSession, url: str, answers: Sequence[float], times: list[float]) -> None:
    """A harness of the bash-tool kind: a system prompt, a task, then a command's output each turn.

    The engine takes ``answers`` seconds, turn by turn; ``times`` is what a call took beyond.
    """
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s" * 3000},
        {"role": "user", "content": "t" * 2000},
    ]
    for turn, seconds in enumerate(answers):
        body = {"model": "m", "messages": messages, "tools": TOOLS, "seconds": seconds}
        start = time.perf_counter()
        async with http.post(url + "/chat/completions", json=body) as got:
            answer = (await got.json())["choices"][0]["message"]
        times.append(time.perf_counter() - start - seconds)
        messages += [answer, {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"{turn}" * 1000}]


async def times_of(urls: list[str], turns: int, seconds: float, *, together: bool) -> list[float]:
    times: list[float] = []
    chance = random.Random(7)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(url: str) -> None:
            if together:
                return await converse(http, url, [seconds] * turns, times)
            answers = [seconds * chance.uniform(0.5, 1.5) for _ in range(turns)]
            await asyncio.sleep(chance.uniform(0, seconds))
            await converse(http, url, answers, times)

        await asyncio.gather(*(one(url) for url in urls))
    return times


def sync_times(path: Path) -> list[float]:
    """Append a record's size and sync, now and then, as a gateway with little to do."""
    times: list[float] = []
    with path.open("ab", buffering=0) as file:
        for _ in range(SYNCS):
            time.sleep(0.01)
            start = time.perf_counter()
            file.write(b"r" * 600)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return times


@contextlib.contextmanager
def child(serve: Callable[..., None], *args: Any) -> Iterator[tuple[Any, Connection]]:
    """Run ``serve`` in a process of its own; give what it says first, and its pipe, on which you tell it to end."""
    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    process = spawn.Process(target=serve, args=(end, *args))
    process.start()
    end.close()  # a child that dies is an EOFError here
    try:
        yield pipe.recv(), pipe
    finally:
        pipe.close()
        process.join()


def run(sessions: int, turns: int, seconds: float) -> dict[str, Any]:
    times: dict[str, list[float]] = {}

    def ask(way: str, urls: list[str], *, together: bool = False) -> None:
        times.setdefault(way, []).extend(asyncio.run(times_of(urls, turns, seconds, together=together)))

    with (
        tempfile.TemporaryDirectory() as folder,
        child(serve_engine) as (engine, engine_pipe),
        child(serve_proxy, engine) as (proxy, proxy_pipe),
        child(serve_gateway, engine, folder, sessions) as (urls, gateway_pipe),
    ):
        for _ in range(ROUNDS):
            ask("direct", [engine] * sessions)
            ask("proxy", [proxy] * sessions)
            ask("through", urls)
            times.setdefault("sync", []).extend(sync_times(Path(folder) / "synced"))
        ask("direct, together", [engine] * sessions, together=True)
        ask("through, together", urls, together=True)
        gateway_pipe.send(None)
        recorded, cpu = gateway_pipe.recv()
        size = sum(path.stat().st_size for path in (Path(folder) / "segments").iterdir())
        proxy_pipe.send(None)
        engine_pipe.send(None)
    assert recorded == sessions * turns * (ROUNDS + 1), "every call is recorded"
    return {"times": times, "calls": recorded, "cpu_s": cpu, "bytes": size}


async def measure(place: Place) -> list[Row]:
    rows: list[Row] = []
    for sessions in (1, 4) if place.quick else (1, 16, 64):
        rows += await _measure(sessions, *((2, 0.1) if place.quick else (10, 1.0)))
    return rows


async def _measure(sessions: int, turns: int, seconds: float) -> list[Row]:
    got = await asyncio.to_thread(run, sessions, turns, seconds)
    many = f"{sessions} sessions at once" if sessions > 1 else "1 session"
    name = f"gateway overhead a call, {many}"
    note = f"{got['cpu_s'] / got['calls'] * 1000:.2g} ms of CPU and {got['bytes'] // got['calls']} bytes on disk a call"
    asked, calls = "engine asked directly, beyond its time", sessions * turns * ROUNDS
    ms = {way: {of: of(times) * 1000 for of in (p50, p99)} for way, times in got["times"].items()}
    middle = {way: of[p50] for way, of in ms.items()}
    base, together = middle["direct"], middle["direct, together"]
    floor = {
        asked: base,
        "added by a proxy that records nothing": middle["proxy"] - base,
        "append and fdatasync": middle["sync"],
    }
    return [
        Row(f"{name}, p50", middle["through"] - base, "ms", calls, TARGET, floor, note=note),
        Row(f"{name}, a call beyond the engine's time, p99", ms["through"][p99], "ms", calls,
            floor={asked: ms["direct"][p99], "append and fdatasync": ms["sync"][p99]}),
        Row(f"{name}, all asking at the same moment, p50", middle["through, together"] - together, "ms",
            sessions * turns, floor={asked: together}),
    ]  # fmt: skip
