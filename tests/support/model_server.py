"""A model server that answers from a list: what no engine of ours may be asked to do, such as failing on purpose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
Answer = dict[str, Any] | tuple[int, dict[str, Any]]


def say(text: str, *commands: str, finish: str = "tool_calls", raw: Sequence[dict[str, Any]] | None = None) -> Answer:
    """A chat completion with a call of ``bash`` for each command, or with ``raw`` functions as calls."""
    functions = raw or [{"name": "bash", "arguments": json.dumps({"command": command})} for command in commands]
    calls = [{"id": f"call_{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def refuse(status: int, code: str | None) -> Answer:
    """An error in OpenAI's form."""
    return status, {"error": {"message": f"no: {code}", "type": "error", "code": code}}


class ModelServer:
    """``async with ModelServer(answers) as server``; keeps the bodies and headers of what it was asked."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.url = ""

    async def __aenter__(self) -> ModelServer:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the last request sent it."""
        return self.bodies[-1]["messages"]

    async def _answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self._answers.pop(0) if self._answers else refuse(500, "no_more_answers")
        if isinstance(answer, tuple):
            return web.json_response(answer[1], status=answer[0], headers={"Retry-After-Ms": "10"})
        return web.json_response({"id": f"chatcmpl-{len(self.bodies)}", **answer})
