"""Each value of a request replaced by what has no place there: it is answered or refused for good, and what is recorded
can be written in every format.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from tests.contract.gateway.conversations import WRITERS
from tests.support.models import renderer

from orchard.gateway import Gateway, GatewayConfig, ScriptedTokens, TokenExact
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.dialects.base import Dialect
from orchard.trajectories import Store
from orchard.trajectories.formats import atif, openai_messages, parquet, samples, whole

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant", "content": "c", "reasoning_content": "r",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    {"role": "user", "content": "go"},
]  # fmt: skip
FUNCTION = {"name": "bash", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
BESIDE: dict[str, dict[str, Any]] = {
    "openai.chat": {
        "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto", "stop": ["E"], "temperature": 1,
        "stream_options": {"include_usage": True}, "response_format": {"type": "text"}, "max_tokens": 5, "n": 1,
    },
    "openai.responses": {
        "tools": [
            {"type": "function", **FUNCTION}, {"type": "custom", "name": "p", "format": {"type": "grammar"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        ],
        "tool_choice": "auto", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
    },
    "anthropic.messages": {
        "tools": [{"name": "bash", "input_schema": FUNCTION["parameters"]}], "tool_choice": {"type": "auto"},
        "max_tokens": 5, "stop_sequences": ["E"], "output_config": {"format": {"type": "json_schema", "schema": {}}},
    },
}  # fmt: skip
ODD: tuple[Any, ...] = (5, "x", [1], {"a": 1}, True)


def odd_bodies(body: Any) -> Iterator[Any]:
    for at in places(body):
        for odd in ODD:
            changed = copy.deepcopy(body)
            inner = changed
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = odd
            yield changed


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*at, key)
        yield from places(inner, (*at, key))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
async def test_nothing_odd_is_a_fault_or_cannot_be_written(store: Store, dialect: Dialect) -> None:
    qwen3 = renderer("qwen3")
    engine = TokenExact(ScriptedTokens(qwen3, ["ok"], at_end="repeat"), qwen3)
    body = WRITERS[dialect.name](MESSAGES) | BESIDE[dialect.name]
    found: list[int] = []
    async with (
        Gateway(store, {"t": engine}, GatewayConfig(hold_seconds=0)) as gateway,
        aiohttp.ClientSession() as http,
    ):
        session = await gateway.open_session()
        for asked in [body, *odd_bodies(body)]:
            async with http.post(f"{session.url}/v1{dialect.path}", json=asked) as got:
                assert got.status in (200, 400), (json.dumps(asked), await got.text())
                found.append(got.status)
    assert found[0] == 200
    assert 400 in found
    recorded = [store.session(session.id)]
    for lines in (whole.write(recorded), samples.write(recorded), openai_messages.write(recorded), atif.write(recorded),
                  parquet.rows(recorded)):  # fmt: skip
        assert len(list(lines)) > 0
