"""In each dialect a choice is one among the tools that the request has."""

from typing import Any

import aiohttp
import pytest

from orchard.gateway import Gateway, ScriptEngine
from orchard.trajectories import Store

PARAMETERS = {"type": "object", "properties": {}}
CHAT = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}],
}
RESPONSES = {"input": "hi", "tools": [{"type": "function", "name": "bash", "parameters": PARAMETERS}]}
MESSAGES = {
    "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "bash", "input_schema": PARAMETERS}],
}  # fmt: skip
CASES: list[tuple[str, Any, Any, int]] = [
    ("/chat/completions", CHAT, {"type": "function", "function": {"name": "bash"}}, 200),
    ("/chat/completions", CHAT, {"type": "function", "function": {"name": "other"}}, 400),
    ("/chat/completions", CHAT | {"tools": []}, "required", 400),
    ("/chat/completions", CHAT, "junk", 400),
    ("/chat/completions", CHAT, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, 400),
    ("/responses", RESPONSES, {"type": "function", "name": "bash"}, 200),
    ("/responses", RESPONSES, {"type": "function", "name": "other"}, 400),
    ("/responses", RESPONSES, "junk", 400),
    ("/messages", MESSAGES, {"type": "tool", "name": "bash"}, 200),
    ("/messages", MESSAGES, {"type": "tool", "name": "other"}, 400),
]


@pytest.mark.parametrize(("path", "body", "choice", "status"), CASES)
async def test_a_tool_that_is_not_there_cannot_be_forced(
    store: Store, path: str, body: Any, choice: Any, status: int
) -> None:
    async with Gateway(store, {"s": ScriptEngine(["ok"])}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        async with http.post(f"{session.url}/v1{path}", json={**body, "tool_choice": choice}) as got:
            said = await got.text()
    assert got.status == status
    assert status == 200 or "tool_choice" in said
    assert session.state.refusals == (status == 400)
