"""Whichever dialect a harness speaks: what it sends back of the model's own words is known again, id for id."""

import json
from typing import Any

import aiohttp
import pytest
from tests.contract.gateway.conversations import WRITERS, Message
from tests.support.models import renderer

from orchard.gateway import Gateway
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.dialects.base import Dialect
from orchard.gateway.engines.script_tokens import ScriptedTokens
from orchard.gateway.exact import TokenExact
from orchard.trajectories import Store

STEPS: Any = [
    {"content": "look", "reasoning_content": "hm", "calls": [{"name": "bash", "arguments": {"command": "ls  -l"}}]},
    {"reasoning_content": "so", "calls": [{"name": "bash", "arguments": {"command": n}} for n in "ab"]},
    "done",
]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "openai.chat": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
    "openai.responses": [{"type": "function", "name": "bash", "parameters": SCHEMA}],
    "anthropic.messages": [{"name": "bash", "input_schema": SCHEMA}],
}


def echo_of(dialect: str, answer: Message) -> tuple[list[Message], list[str]]:
    """Return an answer as a harness puts it into its history, and the ids of its calls."""
    if dialect == "openai.chat":
        message = answer["choices"][0]["message"]
        return [message], [call["id"] for call in message.get("tool_calls", [])]
    if dialect == "openai.responses":
        return answer["output"], [item["call_id"] for item in answer["output"] if "call_id" in item]
    blocks = answer["content"]
    return [{"role": "assistant", "content": blocks}], [one["id"] for one in blocks if one["type"] == "tool_use"]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
async def test_recorded_ids_are_what_the_next_prompt_begins_with(store: Store, dialect: Dialect) -> None:
    written = WRITERS[dialect.name]
    spelled = renderer("qwen3")
    engine = TokenExact(ScriptedTokens(spelled, STEPS), spelled)
    body = written([{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}])
    history = "messages" if "messages" in body else "input"
    async with Gateway(store, {"e": engine}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        for _ in STEPS:
            ask = body | {"tools": TOOLS[dialect.name]}
            async with http.post(f"{session.url}/v1{dialect.path}", json=ask) as got:
                answer = await got.json()
                assert got.status == 200, answer
            echo, calls = echo_of(dialect.name, answer)
            results: list[Message] = [{"role": "tool", "tool_call_id": one, "content": f"out {one}"} for one in calls]
            body[history] += [*echo, *written(results)[history]]
        counted = None
        if dialect.name == "anthropic.messages":
            ask = body | {"tools": TOOLS[dialect.name]}
            async with http.post(f"{session.url}/v1/messages/count_tokens", json=ask) as got:
                counted = await got.json()
    recorded = store.session(session.id)
    first, second, third = recorded.calls
    for before, after in ((first, second), (second, third)):
        assert (after.matched, after.parent, after.edits) == ("extends", before.id, {})
        whole = [*(recorded.prompt_ids(before.id) or []), *(before.sampled_ids or [])]
        assert after.spliced_ids == len(whole)
        assert (recorded.prompt_ids(after.id) or [])[: len(whole)] == whole
    if counted is not None:
        prompt = [*recorded.messages(third.id)]
        assert counted == {"input_tokens": len(spelled.render(prompt, TOOLS["openai.chat"]))}
    assert json.dumps(recorded.messages(third.id)[-1]["content"]) == '"done"'
