"""A real gateway, real clients, and a model server with faults to order."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI
from tests.support import any_load

from orchard.gateway import Session
from orchard.trajectories import Store

__all__ = ["any_load"]
Reply = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
USER: Any = [{"role": "user", "content": "hi"}]
FUNCTIONS = [
    {"type": "function", "function": {"name": "bash", "description": "runs", "parameters": {"type": "object"}}}
]
"""The one tool, in the common form."""
STEPS: Any = [
    {
        "content": "look first",
        "reasoning_content": "what is  here?",
        "calls": [
            {"name": "bash", "arguments": {"command": "ls -l /"}},
            {"name": "bash", "arguments": {"command": "pwd"}},
        ],
    },
    {"calls": [{"name": "bash", "arguments": {"command": "echo"}}]},
    "hello  big world",
]
"""What a script says in each dialect: reasoning, text and two calls; a call alone; text alone."""


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "store") as store:
        yield store


@asynccontextmanager
async def client_of(session: Session, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    options = {"max_retries": 0, "api_key": session.api_key, "base_url": session.url + "/v1"} | options
    async with AsyncOpenAI(**options) as client:
        yield client


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what others do, then give them a moment more."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 — there is no event to wait for on this side of the wire
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)


class ModelServer:
    """A foreign model server: answers with the next reply, the last one for ever."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [whole("ok")]
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return await reply(request, body)


@pytest.fixture
async def model_server() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()


def whole(text: str, delay: float = 0.0, **extra: Any) -> Reply:
    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(delay)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return web.json_response({"choices": [choice | extra.pop("choice", {})], "usage": usage} | extra)

    return reply


def status(code: int, body: Any = None, **headers: str) -> Reply:
    async def reply(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(body or {"error": {"message": "no"}}, status=code, headers=headers)

    return reply


def events(chunks: list[dict[str, Any]], *, done: bool = True, pause: float = 0.0) -> Reply:
    """Stream ``chunks``; ``done=False`` breaks the connection after the last one."""

    async def reply(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await asyncio.sleep(pause)
        if done:
            await response.write(b"data: [DONE]\n\n")
        elif request.transport is not None:
            request.transport.abort()
        return response

    return reply


def text_chunk(text: str, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None} | choice]}


END_CHUNK = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
