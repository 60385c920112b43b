"""Images before a model of text: refused in each dialect's own shape, with what to do, and the session goes on."""

import json
from typing import Any

import aiohttp
import pytest
from tests.contract.gateway.conversations import PNG, WRITERS
from tests.support.models import renderer

from orchard.gateway import Gateway, GatewayConfig, ScriptedTokens, TokenExact
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.dialects.base import Dialect
from orchard.trajectories import Store

QWEN3 = renderer("qwen3")
EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
IMAGE: Any = {"type": "image_url", "image_url": {"url": PNG}}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKS: dict[str, list[Any]] = {
    "user": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}],
    "tool": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [IMAGE]},
    ],
}
"""By the role whose message holds the image."""


@EACH
@pytest.mark.parametrize("role", ASKS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_image_is_refused_with_what_to_do(store: Store, dialect: Dialect, role: str, stream: bool) -> None:
    engine = TokenExact(ScriptedTokens(QWEN3, ["A river."]), QWEN3)
    config = GatewayConfig(header_grace_seconds=60)  # a refusal has its status, however slowly it comes
    async with Gateway(store, {"t": engine}, config) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        url = f"{session.url}/v1{dialect.path}"
        async with http.post(url, json=WRITERS[dialect.name](ASKS[role]) | {"stream": stream}) as got:
            assert (got.status, got.headers["x-should-retry"], got.content_type) == (400, "false", "application/json")
            body = await got.json()
        plain = WRITERS[dialect.name]([{"role": "user", "content": "Hi."}])
        async with http.post(url, json=plain | {"stream": stream}) as got:
            assert (got.status, "A river." in await got.text()) == (200, True)
    words = body["error"].pop("message")
    assert f"role {role!r} holds a part of type 'image_url'" in words
    assert "leave it out, or let the gateway ask a server that takes such parts: --engine openai" in words
    anthropic = {"type": "error", "error": {"type": "invalid_request_error", "code": "text_only"}}
    openai = {"error": {"type": "invalid_request_error", "param": None, "code": "text_only"}}
    assert body == (anthropic if dialect.name == "anthropic.messages" else openai)
    refused, answered = store.session(session.id).calls
    assert (refused.status, refused.error_code, answered.status) == ("error", "text_only", "ok")
    assert json.dumps(IMAGE) in json.dumps(store.session(session.id).prompt(refused.id))  # what was asked is kept


async def test_counting_refuses_it_alike(store: Store) -> None:
    engine = TokenExact(ScriptedTokens(QWEN3, []), QWEN3)
    async with Gateway(store, {"t": engine}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        body = WRITERS["anthropic.messages"](ASKS["user"])
        async with http.post(f"{session.url}/v1/messages/count_tokens", json=body) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (400, "text_only")
