"""What holds in every dialect alike: retries from the record, cut streams, keys and errors."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from tests.contract.gateway.conftest import until
from tests.contract.gateway.conversations import WRITERS

from orchard.gateway import Delta, EngineRequest, Gateway, ScriptEngine, Session
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.dialects.base import Dialect
from orchard.gateway.dialects.origin import origin_of
from orchard.gateway.engine import Part
from orchard.trajectories import Store

EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
BOTH = pytest.mark.parametrize("stream", [False, True])
SAYS = ["first answer", "second answer", "third answer"]


def ask(dialect: Dialect, session: Session, stream: Any, **more: Any) -> dict[str, Any]:
    body = WRITERS[dialect.name]([{"role": "user", "content": "hi"}]) | {"stream": stream}
    return {"url": f"{session.url}/v1{dialect.path}", "json": body, **more}


@EACH
@BOTH
async def test_a_retry_gets_the_recorded_answer(store: Store, dialect: Dialect, stream: bool) -> None:
    async with Gateway(store, {"s": ScriptEngine(SAYS)}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        answers = []
        for headers in ({}, {"x-stainless-retry-count": "1"}, {}):
            async with http.post(**ask(dialect, session, stream, headers=headers)) as got:
                text = await got.text()
                answers.append(next(number for number in ("first", "second", "third") if number in text))
                assert got.headers["Content-Type"].startswith("text/event-stream" if stream else "application/json")
    assert answers == ["first", "first", "second"]
    recorded = store.session(session.id)
    assert [retry.call for retry in recorded.retries] == [recorded.calls[0].id]
    assert (session.state.turns, session.state.retries) == (2, 1)


@EACH
@pytest.mark.parametrize("count", ["\u00b2", "-1", "1.5", "", "9" * 5000])
async def test_a_retry_header_that_is_no_count_says_nothing(store: Store, dialect: Dialect, count: str) -> None:
    async with Gateway(store, {"s": ScriptEngine(SAYS)}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        for number in ("first", "second"):
            asked = ask(dialect, session, False, headers={"x-stainless-retry-count": count})
            async with http.post(**asked) as got:
                assert number in await got.text()
    assert (session.state.turns, session.state.retries) == (2, 0)


@EACH
@pytest.mark.parametrize("stream", ["false", 0, []])
async def test_a_stream_is_asked_for_with_true_or_false(store: Store, dialect: Dialect, stream: Any) -> None:
    async with Gateway(store, {"s": ScriptEngine(SAYS)}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        async with http.post(**ask(dialect, session, stream)) as refused:
            assert refused.status == 400
            assert "stream must be true or false" in await refused.text()
        async with http.post(**ask(dialect, session, None)) as got:
            assert got.headers["Content-Type"].startswith("application/json")
            assert "first" in await got.text()


@EACH
async def test_a_stream_that_its_reader_leaves_is_cut(store: Store, dialect: Dialect) -> None:
    async with Gateway(store, {"s": _Dripping(ScriptEngine(["word " * 5]))}) as gateway:
        session = await gateway.open_session()
        async with aiohttp.ClientSession() as http, http.post(**ask(dialect, session, True)) as got:
            async for line in got.content:
                if b"word" in line:
                    break
        await until(lambda: session.state.aborted)
    (call,) = store.session(session.id).calls
    assert (call.status, call.error_code, call.dialect) == ("aborted", "engine_unavailable", dialect.name)
    assert (call.answer or {})["content"].startswith("word ")


class _Dripping:
    """Passes the deltas of another engine on, and never ends."""

    name = "dripping"
    policy_version = None

    def __init__(self, inner: ScriptEngine) -> None:
        self._inner = inner

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Part]:
        async for part in self._inner.complete(request):
            yield part
            if isinstance(part, Delta) and part.delta.get("content"):
                await asyncio.sleep(30)

    async def close(self) -> None: ...


@EACH
async def test_the_socket_of_a_session_needs_no_key(store: Store, dialect: Dialect) -> None:
    async with Gateway(store, {"s": ScriptEngine(SAYS)}) as gateway:
        session = await gateway.open_session()
        connector = aiohttp.UnixConnector(session.target.removeprefix("unix:"))
        async with aiohttp.ClientSession(connector=connector) as http:
            body = ask(dialect, session, False)["json"]
            async with http.post(f"http://gateway/v1{dialect.path}", json=body) as got:
                assert "first answer" in await got.text()
            async with http.post(f"http://gateway/s/se-other/v1{dialect.path}", json=body) as got:
                assert got.status == 401
                assert (await got.json())["error"]["type"] == "authentication_error"
    assert session.state.turns == 1


@EACH
async def test_what_is_no_json_is_refused_and_recorded(store: Store, dialect: Dialect) -> None:
    async with Gateway(store, {"s": ScriptEngine(SAYS)}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        for body in (
            b"{",
            b"[]",
            b'{"model": "\\u0000", "input": "x", "messages": [{"role": "user", "content": "x"}]}',
        ):
            async with http.post(f"{session.url}/v1{dialect.path}", data=body) as got:
                error = (await got.json())["error"]
                assert (got.status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_argument")
                assert got.headers["x-should-retry"] == "false"
    assert [one.code for one in store.session(session.id).refusals] == ["invalid_argument"] * 3


HEADERS = [
    ({"thread-id": "t", "session-id": "s"}, ("t", None, None)),
    (
        {"thread-id": "t", "x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})},
        ("t", None, "compaction"),
    ),
    (
        {"thread-id": "b", "x-codex-parent-thread-id": "a", "x-openai-subagent": "collab_spawn"},
        ("b", "a", "subagent"),
    ),
    ({"thread-id": "b", "x-openai-subagent": "review"}, ("b", None, "review")),
    ({"thread-id": "b", "x-openai-subagent": "compact"}, ("b", None, "compaction")),
    ({"x-codex-turn-metadata": "{broken"}, (None, None, None)),
    ({"x-codex-turn-metadata": "[1]"}, (None, None, None)),
    ({"x-claude-code-session-id": "m"}, ("m", None, None)),
    ({"x-claude-code-session-id": "m", "x-claude-code-agent-id": "h"}, ("h", "m", "subagent")),
    ({"x-session-id": "c", "x-parent-session-id": "p"}, ("c", "p", "subagent")),
    ({"x-litellm-session-id": "o"}, ("o", None, None)),
    ({"session_id": "w", "x-session-affinity": "w"}, ("w", None, None)),
    ({"x-session-id": "\udcff" * 500}, ("\ufffd" * 200, None, None)),
    ({}, (None, None, None)),
]


@pytest.mark.parametrize(("headers", "expected"), HEADERS)
def test_who_asks(headers: dict[str, str], expected: tuple[str | None, ...]) -> None:
    origin = origin_of(headers)
    assert (origin.agent, origin.parent, origin.kind) == expected
