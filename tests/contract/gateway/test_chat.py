"""OpenAI chat completions as the real client sees them."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from tests.contract.gateway.conftest import USER, client_of, until

from orchard.core.errors import Conflict, NotFound
from orchard.gateway import Budget, Gateway, GatewayConfig, ScriptEngine, bash_step
from orchard.trajectories import Store

TOOLS: Any = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
STEPS = [bash_step("ls -l /", "look first"), "hello  big world", {"bash": "echo done"}]


def said(message: ChatCompletionMessage) -> list[tuple[str, str, str]]:
    calls = [call for call in message.tool_calls or [] if call.type == "function"]
    return [(call.id, call.function.name, call.function.arguments) for call in calls]


async def test_whole_and_streamed_say_the_same(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(STEPS)}) as gateway:
        whole, streamed = await gateway.open_session(), await gateway.open_session()
        for _ in STEPS:
            async with client_of(whole) as client:
                one = await client.chat.completions.create(model="m", messages=USER, tools=TOOLS)
            async with (
                client_of(streamed) as client,
                client.chat.completions.stream(
                    model="m",
                    messages=USER,
                    tools=TOOLS,
                    stream_options={"include_usage": True},
                ) as stream,
            ):
                other = await stream.get_final_completion()
            left, right = one.choices[0], other.choices[0]
            assert (left.message.content or "") == (right.message.content or "")
            assert left.finish_reason == right.finish_reason
            assert said(left.message) == said(right.message)
            assert one.usage is not None
            assert other.usage is not None
            assert one.usage.total_tokens == other.usage.total_tokens > 0
            assert one.id != other.id
    recorded = [store.session(s.id).calls for s in (whole, streamed)]
    assert [c.answer for c in recorded[0]] == [c.answer for c in recorded[1]]
    assert [c.streamed for c in [*recorded[0], *recorded[1]]] == [False] * 3 + [True] * 3
    first = recorded[0][0]
    assert (first.tools, first.messages, first.status, first.usage.estimated) == (TOOLS, USER, "ok", True)
    assert recorded[0][1].tools is None
    assert store.session(whole.id).tools(recorded[0][1].id) == TOOLS


async def test_sampling_is_recorded_as_sent(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"], policy_version="v7")}) as gateway:
        session = await gateway.open_session(labels={"run": "r"}, model="mine")
        async with client_of(session) as client:
            answer = await client.chat.completions.create(
                model="theirs",
                messages=USER,
                temperature=0.3,
                seed=4,
                tool_choice="none",
            )
            assert [model.id for model in (await client.models.list()).data] == ["mine"]
            assert (await client.models.retrieve("mine")).id == "mine"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("other")
    (call,) = store.session(session.id).calls
    assert answer.model == "theirs"
    assert (call.model, call.policy_version, call.engine, call.dialect) == ("mine", "v7", "script", "openai.chat")
    assert call.sampling == {"temperature": 0.3, "seed": 4, "tool_choice": "none"}
    assert call.times.engine_end is not None
    assert call.times.received <= call.times.engine_end
    assert store.session(session.id).sessions[0].labels == {"run": "r"}


async def test_who_is_who(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"], at_end="repeat")}) as gateway:
        mine, other = await gateway.open_session(), await gateway.open_session()
        good = [
            (mine.url + "/v1", "anything"),
            (mine.url, mine.api_key),
            (gateway.url + "/v1", mine.api_key),
            (gateway.url, mine.api_key),
        ]
        for base, key in good:
            async with client_of(mine, base_url=base, api_key=key) as client:
                await client.chat.completions.create(model="m", messages=USER)
        bad = [
            (gateway.url + "/v1", "wrong"),
            (gateway.url + "/s/se-unknown/v1", mine.api_key),
            (mine.url + "/v1", other.api_key),
        ]
        for base, key in bad:
            async with client_of(mine, base_url=base, api_key=key) as client:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await client.chat.completions.create(model="m", messages=USER)
                assert caught.value.code == "unauthorized"
        assert mine.state.turns == len(good)
        assert other.state.turns == 0


async def test_the_socket_of_a_session_is_its_own(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"], at_end="repeat")}) as gateway:
        mine, other = await gateway.open_session(), await gateway.open_session()
        path = mine.target.removeprefix("unix:")
        assert len(path) < 100
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as http:
            answers = []
            for prefix in ("", f"/s/{mine.id}", f"/s/{other.id}"):
                body = {"model": "m", "messages": USER}
                headers = {"Authorization": f"Bearer {other.api_key}"}
                async with http.post(f"http://gateway{prefix}/v1/chat/completions", json=body, headers=headers) as got:
                    answers.append(got.status)
        assert answers == [200, 200, 401]
        assert (mine.state.turns, other.state.turns) == (2, 0)


@pytest.mark.parametrize(("budget", "served"), [("turns", 2), ("tokens", 3), ("seconds", 1)])
async def test_budgets_end_a_session_finally(store: Store, budget: str, served: int) -> None:
    bounds = {"turns": Budget(turns=2), "tokens": Budget(tokens=5), "seconds": Budget(seconds=3.0)}
    engine = ScriptEngine(["one"], at_end="repeat", latency=3.05 if budget == "seconds" else 0)
    async with Gateway(store, {"script": engine}) as gateway:
        session = await gateway.open_session(budget=bounds[budget])
        async with client_of(session, max_retries=2) as client:
            for _ in range(served):
                await client.chat.completions.create(model="m", messages=USER)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="m", messages=USER)
            assert caught.value.code == "budget_exceeded"
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=USER, stream=True)
    assert (session.state.cut, session.state.turns, session.state.refusals) == (budget, served, 2)
    recorded = store.session(session.id)
    assert [r.code for r in recorded.refusals] == ["budget_exceeded"] * 2
    assert len(recorded.calls) == served


async def test_a_budget_of_turns_counts_what_is_running(store: Store) -> None:
    engine = ScriptEngine(["one"], at_end="repeat", latency=0.1)
    async with Gateway(store, {"script": engine}) as gateway:
        session = await gateway.open_session(budget=Budget(turns=3))
        async with client_of(session) as client:
            asks = [client.chat.completions.create(model="m", messages=USER) for _ in range(10)]
            results = await asyncio.gather(*asks, return_exceptions=True)
    assert sum(not isinstance(r, Exception) for r in results) == 3
    assert session.state.turns == 3


async def test_what_is_no_request_is_refused_in_shape(store: Store) -> None:
    config = GatewayConfig(body_bytes=10_000)
    async with Gateway(store, {"script": ScriptEngine(["x"])}, config) as gateway:
        session = await gateway.open_session()
        bad = [b"{", b"[]", b'{"messages": []}', b'{"messages": [1]}', b'{"messages": [{"content": "x"}]}']
        bad += [
            json.dumps({"messages": USER}).encode()[:-1] + b', "x": %b}' % x for x in (b"NaN", b"-Infinity", b"1e999")
        ]
        bad += [json.dumps({"messages": USER, "n": number}).encode() for number in (2, True, 1.5, "1")]
        async with aiohttp.ClientSession() as http:
            for body in bad:
                async with http.post(session.url + "/chat/completions", data=body) as got:
                    error = (await got.json())["error"]
                    assert (got.status, error["code"]) == (400, "invalid_argument")
            async with http.post(session.url + "/chat/completions", data=b" " * 10_001) as got:
                assert (got.status, (await got.json())["error"]["type"]) == (413, "invalid_request_error")
            async with http.get(session.url + "/v1/nonsense") as got:
                assert got.status == 404
            async with http.head(session.url) as got:
                assert got.status == 200
        assert session.state.refusals == len(bad) + 1
        assert session.state.turns == 0
        with pytest.raises(NotFound):
            await gateway.open_session(engine="none")


CALL: Any = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("role", {"role": 5, "content": "x"}),
        ("role", {"role": ["user"], "content": "x"}),
        ("content", {"role": "user", "content": {"type": "text", "text": "x"}}),
        ("content", {"role": "user", "content": 5}),
        ("content", {"role": "user", "content": ["x", 1]}),
        ("content[0].type", {"role": "user", "content": [{"text": "x"}]}),
        ("content[1].text", {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": 1}]}),
        ("tool_calls", {"role": "assistant", "tool_calls": [1]}),
        ("tool_calls", {"role": "assistant", "tool_calls": "ls"}),
        ("tool_calls", {"role": "assistant", "tool_calls": {"id": "c"}}),
        ("tool_calls[0].id", {"role": "assistant", "tool_calls": [CALL | {"id": 5}]}),
        ("tool_calls[0].function", {"role": "assistant", "tool_calls": [{"id": "c"}]}),
        ("tool_calls[1].function", {"role": "assistant", "tool_calls": [CALL, CALL | {"function": "ls"}]}),
        ("tool_calls[0].function.name", {"role": "assistant", "tool_calls": [CALL | {"function": {"name": None}}]}),
        (
            "tool_calls[0].function.arguments",
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "bash", "arguments": ["ls"]}}]},
        ),
        ("tool_call_id", {"role": "tool", "content": "x", "tool_call_id": 5}),
    ],
)
async def test_an_odd_message_is_refused_by_its_field(store: Store, field: str, message: dict[str, Any]) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        body = {"messages": [*USER, message]}
        async with http.post(session.url + "/v1/chat/completions", json=body) as got:
            error = (await got.json())["error"]
            assert (got.status, error["code"]) == (400, "invalid_argument"), error
            assert f"messages[1].{field} " in error["message"]
    assert (session.state.refusals, session.state.failed, store.session(session.id).calls) == (1, 0, [])


async def test_an_odd_tool_is_refused_by_its_field(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        for tools in ([1], {"a": 1}, [{"type": "function"}], [*TOOLS, {"type": "function", "function": {"name": 1}}]):
            body = {"messages": USER, "tools": tools}
            async with http.post(session.url + "/v1/chat/completions", json=body) as got:
                error = (await got.json())["error"]
                assert (got.status, error["code"]) == (400, "invalid_argument"), error
                assert "tools" in error["message"]


async def test_end_of_script_is_final(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["only"])}) as gateway:
        session = await gateway.open_session()
        async with client_of(session, max_retries=3) as client:
            await client.chat.completions.create(model="m", messages=USER)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="m", messages=USER)
            assert caught.value.code == "script_ended"
    assert (session.state.failed, session.state.error_code) == (1, "script_ended")
    assert [c.status for c in store.session(session.id).calls] == ["ok", "error"]


async def test_nothing_secret_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway:
        session = await gateway.open_session()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.api_key}"}) as http:
            body = {"messages": [{"role": "user", "content": "very-private"}]}
            async with http.post(gateway.url + "/v1/chat/completions", json=body) as got:
                assert got.status == 200
        assert session.api_key not in repr(session)
    assert session.api_key not in caplog.text
    assert "very-private" not in caplog.text


async def test_closing_goes_on_when_its_caller_is_cancelled(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"], latency=30)}) as gateway:
        session = await gateway.open_session()
        async with aiohttp.ClientSession() as http:
            ask = asyncio.ensure_future(http.post(session.url + "/chat/completions", json={"messages": USER}))
            await until(lambda: session.state.last_call)
            closing = asyncio.ensure_future(session.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert session.state.aborted == 1
            assert (await ask).status == 503
        assert [call.status for call in store.session(session.id).calls] == ["aborted"]


async def test_a_port_that_is_taken(store: Store) -> None:
    async with Gateway(store, {}) as first:
        port = int(first.url.rsplit(":", 1)[1])
        with pytest.raises(Conflict):
            async with Gateway(store, {}, GatewayConfig(port=port)):
                pass


async def test_closing_leaves_nothing(store: Store) -> None:
    engine = ScriptEngine(["x"], latency=30)
    async with Gateway(store, {"script": engine}) as gateway:
        session = await gateway.open_session()
        socket = Path(session.target.removeprefix("unix:"))
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as http:
            ask = asyncio.ensure_future(http.post("http://g/v1/chat/completions", json={"messages": USER}))
            await until(lambda: session.state.last_call)
            await session.close()
            assert (await asyncio.wait_for(ask, 60)).status == 503
        assert not os.path.lexists(socket)  # noqa: ASYNC240
        async with client_of(session) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        await session.close()
    assert not os.path.lexists(socket.parent)  # noqa: ASYNC240
    assert session.state.aborted == 1
    (call,) = store.session(session.id).calls
    assert call.status == "aborted"
