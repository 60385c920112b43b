"""Servers of tokens that give recorded answers, as vLLM 0.32 and SGLang 0.5 put them on the wire."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from orchard.gateway.tokens import Ended, Sampling, TokenEngine, TokenRequest, Tokens

PROMPT = (1, 9690, 198, 2683)


class TokenServer:
    """Answers each path with its next reply, the last one for ever; a reply is JSON, events, or ``(status, JSON)``."""

    def __init__(self, replies: dict[str, list[Any]]) -> None:
        self.replies = replies
        self.asked: list[tuple[str, Any]] = []
        self.gate: asyncio.Event | None = None
        """Events after the first of an answer wait for it."""
        self.left = asyncio.Event()
        """Set when a reader of events has gone before their end."""
        self.silent = ""
        """A path that is heard and never answered."""
        self.heard = asyncio.Event()
        """Set once it was asked for."""
        self.url, self.port = "", 0

    def bodies(self, path: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == path]

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body: Any = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
        if request.path == self.silent:
            self.heard.set()
            await asyncio.Event().wait()
        if request.path == "/v1/load_lora_adapter":
            self.replies["/v1/models"] = [{"data": [*MODELS["data"], {"id": body["lora_name"]}]}]
        replies = self.replies.get(request.path, [(404, {"detail": "Not Found"})])
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, tuple):
            return web.json_response(reply[1], status=reply[0])
        return await self._stream(request, reply) if isinstance(reply, list) else web.json_response(reply)

    async def _stream(self, request: web.Request, events: Sequence[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for index, event in enumerate(events):
                if event is None:  # the connection breaks here
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if index and self.gate is not None:
                    await self.gate.wait()
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return response


@asynccontextmanager
async def serving(server: TokenServer, port: int = 0) -> AsyncIterator[TokenServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    server.port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{server.port}"
    yield server
    await runner.cleanup()


def asks(session: str = "s", ids: Sequence[int] = PROMPT, **sampling: Any) -> TokenRequest:
    return TokenRequest(session, ids, Sampling(**sampling))


async def sample(
    engine: TokenEngine, request: TokenRequest, ids: list[int] | None = None
) -> tuple[list[int], list[float], Ended]:
    """Return all ids, their log-probabilities, and the end; a list ``ids`` that is given has them as they come."""
    ids = [] if ids is None else ids
    logprobs: list[float] = []
    async for part in engine.generate(request):
        if isinstance(part, Tokens):
            ids += part.ids
            logprobs += part.logprobs
        else:
            return ids, logprobs, part
    raise AssertionError("no end")


# vLLM

MODELS: dict[str, Any] = {
    "object": "list",
    "data": [{"id": "smol", "object": "model", "owned_by": "vllm", "max_model_len": 16}],
}


def vllm_event(ids: Sequence[int], logprobs: Sequence[float | None], **choice: Any) -> dict[str, Any]:
    told = {"text_offset": [0], "token_logprobs": list(logprobs), "tokens": ["x"] * len(ids), "top_logprobs": []}
    body = {
        "index": 0,
        "text": "x",
        "logprobs": told,
        "finish_reason": None,
        "stop_reason": None,
        "token_ids": list(ids),
    }
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "smol", "choices": [body | choice]}


VLLM_USAGE = {
    "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "smol", "choices": [],
    "usage": {"prompt_tokens": 4, "total_tokens": 7, "completion_tokens": 3,
              "prompt_tokens_details": {"cached_tokens": 2}},
}  # fmt: skip
VLLM_ANSWER = [
    vllm_event([5], [-0.25], prompt_token_ids=list(PROMPT)),
    vllm_event([6], [None]),
    vllm_event([2], [-0.5], finish_reason="stop"),
    VLLM_USAGE,
]


def vllm_probe(second: float, sampled: float = -30.0) -> dict[str, Any]:
    """The two likeliest ids, of which the first is certain, and the sampled one."""
    told = {"token_logprobs": [sampled], "tokens": ["c"], "top_logprobs": [{"c": sampled, "a": 0.0, "b": second}]}
    return {"choices": [{"index": 0, "text": "a", "finish_reason": "length", "logprobs": told}]}


def vllm(**replies: list[Any]) -> TokenServer:
    """A vLLM server; ``completions=[…]`` are its answers."""
    paths: dict[str, list[Any]] = {
        "/v1/models": [MODELS], "/v1/completions": replies.get("completions", [VLLM_ANSWER]), "/health": [{}],
        "/pause": [{"status": "paused"}], "/resume": [{"status": "resumed"}], "/reset_prefix_cache": [{}],
        "/collective_rpc": replies.get("rpc", [{"results": [None]}]),
        "/v1/load_lora_adapter": [{}], "/v1/unload_lora_adapter": replies.get("unload", [{}]),
        "/weight_info": replies.get("info", [{"weight_version": "1"}]),
        "/update_weight_version": [{"success": True}],
    }  # fmt: skip
    return TokenServer(paths)


# SGLang


def sglang_event(
    entries: Sequence[Sequence[Any]], total: int, version: str = "default", finish: Any = None
) -> dict[str, Any]:
    meta = {
        "id": "r", "finish_reason": finish, "prompt_tokens": 4, "weight_version": version, "total_retractions": 0,
        "input_token_logprobs": [], "output_token_logprobs": [list(entry) for entry in entries],
        "completion_tokens": total, "cached_tokens": 2,
    }  # fmt: skip
    return {"text": "x", "output_ids": [entry[1] for entry in entries], "meta_info": meta}


STOP = {"type": "stop", "matched": 2}
ENTRIES = [[-0.25, 5, None], [-0.75, 6, None], [-0.5, 2, None]]
SGLANG_ANSWER = [sglang_event(ENTRIES[:n], n, finish=STOP if n == 3 else None) for n in (1, 2, 3)]


def sglang(**replies: list[Any]) -> TokenServer:
    """An SGLang server; ``generate=[…]`` are its answers."""
    paths: dict[str, list[Any]] = {
        "/v1/models": [MODELS], "/generate": replies.get("generate", [SGLANG_ANSWER]), "/health": [{}],
        "/abort_request": [{}], "/pause_generation": [{"status": "ok"}], "/continue_generation": [{"status": "ok"}],
        "/get_model_info": replies.get("info", [{"model_path": "smol", "weight_version": "1"}]),
        "/update_weights_from_disk": replies.get("update", [{"success": True, "message": "Succeeded to update."}]),
    }  # fmt: skip
    return TokenServer(paths)
