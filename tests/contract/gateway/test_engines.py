"""Engines that fail, restart, refuse and break off; token ids; replay."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from tests.contract.gateway.conftest import END_CHUNK, USER, ModelServer, client_of, events, status, text_chunk, whole

from orchard.core.errors import InvalidArgument, RateLimited
from orchard.gateway import (
    Delta,
    EngineRequest,
    EngineUnavailable,
    Final,
    Gateway,
    GatewayConfig,
    OpenAIEngine,
    ReplayEngine,
    ScriptEngine,
    bash_step,
)
from orchard.trajectories import Store, Usage, to_samples

QUICK = GatewayConfig(hold_seconds=1.0, keep_alive_seconds=0.05, header_grace_seconds=0.05)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", [None, True])
async def test_a_foreign_server(store: Store, model_server: ModelServer, stream: bool, upstream: bool | None) -> None:
    usage: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    if stream or upstream:
        model_server.replies = [events([text_chunk("he"), text_chunk("llo"), END_CHUNK, usage])]
    else:
        model_server.replies = [whole("hello")]
    engine = OpenAIEngine(model_server.url, api_key="sk-upstream\n", stream=upstream, extra={"top_k": 1})
    async with Gateway(store, {"o": engine}) as gateway:
        session = await gateway.open_session(model="theirs")
        async with client_of(session) as client:
            if stream:
                async with client.chat.completions.stream(model="x", messages=USER, temperature=0.5) as parts:
                    text = (await parts.get_final_completion()).choices[0].message.content
            else:
                got = await client.chat.completions.create(model="x", messages=USER, temperature=0.5)
                text = got.choices[0].message.content
    assert text == "hello"
    (sent,) = model_server.bodies
    assert (sent["model"], sent["temperature"], sent["top_k"], sent["messages"]) == ("theirs", 0.5, 1, USER)
    (call,) = store.session(session.id).calls
    assert (call.model, call.sampling) == ("theirs", {"temperature": 0.5, "top_k": 1})
    assert (call.usage.prompt_tokens, call.usage.completion_tokens, call.usage.estimated) == (7, 3, False)
    assert call.prompt_ids is None
    assert not any(b"sk-upstream" in path.read_bytes() for path in (store.path / "segments").iterdir())


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_recorded_where_they_are_given(
    store: Store, model_server: ModelServer, stream: bool
) -> None:
    logprobs = {"content": [{"token": "o", "logprob": -0.25}, {"token": "k", "logprob": None}]}
    if stream:
        first = text_chunk("o", token_ids=[5], logprobs={"content": logprobs["content"][:1]}) | {
            "prompt_token_ids": [1, 2]
        }
        second = text_chunk("k", token_ids=[6], logprobs={"content": logprobs["content"][1:]})
        model_server.replies = [events([first, second, END_CHUNK])]
    else:
        model_server.replies = [
            whole("ok", choice={"token_ids": [5, 6], "logprobs": logprobs}, prompt_token_ids=[1, 2])
        ]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url, token_ids=True)}) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            if stream:
                async for _ in await client.chat.completions.create(model="m", messages=USER, stream=True):
                    pass
            else:
                await client.chat.completions.create(model="m", messages=USER)
    assert model_server.bodies[0]["return_token_ids"] is True
    (call,) = store.session(session.id).calls
    assert (call.prompt_ids, call.sampled_ids, call.logprobs) == ([1, 2], [5, 6], [-0.25, -9999.0])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [[-0.1, -0.2], []])
async def test_ids_without_their_log_probabilities_make_no_sample(
    store: Store, model_server: ModelServer, logprobs: list[float], stream: bool
) -> None:
    told = {"token_ids": [10, 11, 12], "logprobs": {"content": [{"logprob": one} for one in logprobs]}}
    model_server.replies = [
        events([text_chunk("ok", **told), END_CHUNK]) if stream else whole("ok", choice=told, prompt_token_ids=[1])
        for _ in range(2)
    ]
    engines = {
        "ids": OpenAIEngine(model_server.url, token_ids=True, stream=stream),
        "text": OpenAIEngine(model_server.url, stream=stream),
    }
    async with Gateway(store, engines) as gateway:
        ids, text = [await gateway.open_session(engine=name, model="m") for name in engines]
        async with client_of(ids) as client:
            with pytest.raises(openai.BadRequestError, match="token_ids"):
                await client.chat.completions.create(model="m", messages=USER)
        async with client_of(text) as client:
            await client.chat.completions.create(model="m", messages=USER)
    (call,) = store.session(text.id).calls
    assert (call.status, call.prompt_ids, call.sampled_ids) == ("ok", None, None)
    (refused,) = store.session(ids.id).calls
    assert (refused.error_code, refused.sampled_ids) == ("engine_refused", None)
    assert to_samples(store.session(ids.id)) == to_samples(store.session(text.id)) == []


async def test_an_engine_that_tells_ids_askew_is_refused(store: Store) -> None:
    class Askew:
        name, policy_version = "askew", None

        async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
            yield Final({"role": "assistant", "content": "x"}, "stop", Usage(), prompt_ids=[1], sampled_ids=[2, 3],
                        logprobs=[-1.0])  # fmt: skip

        async def close(self) -> None: ...

    async with Gateway(store, {"a": Askew()}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            with pytest.raises(openai.BadRequestError, match="1 log-probabilities for 2 ids"):
                await client.chat.completions.create(model="m", messages=USER)
    (call,) = store.session(session.id).calls
    assert (call.status, call.sampled_ids) == ("error", None)
    calls = [call.model_copy(update={"status": "ok", "prompt_ids": [1], "sampled_ids": [2, 3], "logprobs": [-1.0]})]
    with pytest.raises(InvalidArgument, match="1 log-probabilities for 2 sampled ids"):
        to_samples(replace(store.session(session.id), calls=calls))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_restarting_engine_is_waited_for(store: Store, model_server: ModelServer, stream: bool) -> None:
    away, none = [status(503), status(429)], status(200, {"choices": []})
    model_server.replies = [*away, none, events([text_chunk("ok"), END_CHUNK]) if stream else whole("ok")]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            if stream:
                async with client.chat.completions.stream(model="m", messages=USER) as parts:
                    text = (await parts.get_final_completion()).choices[0].message.content
            else:
                text = (await client.chat.completions.create(model="m", messages=USER)).choices[0].message.content
    assert text == "ok"
    assert (session.state.engine_failures, session.state.failed, session.state.turns) == (3, 0, 1)
    assert [c.status for c in store.session(session.id).calls] == ["ok"]


@pytest.mark.parametrize("fault", ["down", "429", "drops"])
async def test_an_engine_that_stays_away_is_503_and_recorded(
    store: Store, model_server: ModelServer, fault: str
) -> None:
    model_server.replies = [status(429)] if fault == "429" else [events([], done=False)]
    url = "http://127.0.0.1:9/v1" if fault == "down" else model_server.url
    async with Gateway(store, {"o": OpenAIEngine(url)}, QUICK) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=USER)
    assert (caught.value.status_code, caught.value.code) == (503, "engine_unavailable")
    assert "retry-after" in caught.value.response.headers
    assert (session.state.failed, session.state.error_code) == (1, "engine_unavailable")
    assert session.state.engine_failures >= 2
    (call,) = store.session(session.id).calls
    assert (call.status, call.error_code, call.answer) == ("error", "engine_unavailable", None)


async def test_a_held_stream_is_kept_alive(store: Store, model_server: ModelServer) -> None:
    model_server.replies = [status(503), status(503), events([text_chunk("ok"), END_CHUNK])]
    async with Gateway(
        store, {"o": OpenAIEngine(model_server.url)}, GatewayConfig(keep_alive_seconds=0.02, header_grace_seconds=0.02)
    ) as gateway:
        session = await gateway.open_session(model="m")
        body = {"messages": USER, "stream": True}
        async with aiohttp.ClientSession() as http, http.post(session.url + "/chat/completions", json=body) as got:
            text = await got.text()
    assert got.status == 200
    assert text.index(": keep-alive") < text.index('"ok"') < text.index("[DONE]")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_passed_on_with_its_status(store: Store, model_server: ModelServer, stream: bool) -> None:
    body = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}
    model_server.replies = [status(400, body)]
    config = GatewayConfig(header_grace_seconds=20)
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}, config) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session, max_retries=2) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="m", messages=USER, stream=stream)
    assert caught.value.body == body["error"]
    assert len(model_server.bodies) == 1
    assert session.state.error_code == "engine_refused"


async def test_a_late_refusal_of_a_stream_is_an_event(store: Store, model_server: ModelServer) -> None:
    async def late(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        return await status(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})(request, body)

    model_server.replies = [late]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}, QUICK) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
            with pytest.raises(openai.APIError, match="too long"):
                async for _ in stream:
                    pass
    assert session.state.error_code == "engine_refused"


async def test_an_engine_that_breaks_off_a_live_stream_breaks_it(store: Store, model_server: ModelServer) -> None:
    model_server.replies = [events([text_chunk("half")], done=False, pause=0.1)]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}, QUICK) as gateway:
        session = await gateway.open_session(model="m")
        body = {"messages": USER, "stream": True}
        async with aiohttp.ClientSession() as http, http.post(session.url + "/chat/completions", json=body) as got:
            with pytest.raises(aiohttp.ClientError):
                await got.read()
    (call,) = store.session(session.id).calls
    assert (call.status, call.error_code) == ("aborted", "engine_unavailable")
    assert call.answer == {"role": "assistant", "content": "half"}
    assert len(model_server.bodies) == 1


CHOICE = {"message": {"content": "hi"}, "finish_reason": "stop"}
ODD: dict[str, Any] = {
    "a list": [1], "text": "hi", "choices of text": {"choices": ["hi"]},
    "a message of text": {"choices": [{"message": "hi", "delta": "hi", "finish_reason": "stop"}]},
    "usage of words": {"choices": [CHOICE], "usage": {"prompt_tokens": "many"}},
    "log-probabilities of text": {"choices": [CHOICE | {"logprobs": {"content": ["x"]}}]},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_in_another_shape_is_the_servers_fault(
    store: Store, model_server: ModelServer, odd: str, stream: bool
) -> None:
    model_server.replies = [events([ODD[odd]]) if stream else status(200, ODD[odd])]
    request = EngineRequest(session="s", turn=0, model="m", messages=USER, tools=[], params={}, stream=stream)
    engine = OpenAIEngine(model_server.url)
    with pytest.raises(EngineUnavailable):
        async for _ in engine.complete(request):
            pass
    await engine.close()


@pytest.mark.parametrize(("fault", "code"), [(RuntimeError("bug"), "internal"), (RateLimited("busy"), "rate_limited")])
async def test_a_faulty_engine_is_not_the_models_fault(store: Store, fault: Exception, code: str) -> None:
    def broken(*_: Any) -> str:
        raise fault

    async with Gateway(store, {"s": ScriptEngine(broken)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=USER)
    assert (caught.value.status_code, caught.value.code) == (503, code)  # never a bare 429, which some take as final
    (call,) = store.session(session.id).calls
    assert (call.status, call.error_code) == ("error", code)


async def test_what_cannot_be_recorded_is_not_given(store: Store) -> None:
    engine = ScriptEngine([{"content": "x", "extra": b"no JSON"}], at_end="repeat")  # type: ignore[dict-item]
    async with Gateway(store, {"s": engine}) as gateway, aiohttp.ClientSession() as http:
        session = await gateway.open_session()
        for message in (USER[0], USER[0] | {"\ud800": 1}):
            async with http.post(session.url + "/chat/completions", json={"messages": [message]}) as got:
                assert (got.status, (await got.json())["error"]["code"]) == (503, "internal")
        async with http.post(session.url + "/chat/completions", json={"messages": USER, "model": "\ud800"}) as got:
            assert got.status == 400
    assert (session.state.turns, session.state.failed) == (0, 2)
    assert store.session(session.id).calls == []


async def converse(client: openai.AsyncOpenAI, turns: int, alter: int = -1) -> list[str]:
    """A tiny harness: echoes the model's turns in another form, as real ones do."""
    messages: list[Any] = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    said = []
    for turn in range(turns):
        answer = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message
        said.append(json.dumps([answer.content, [call.to_dict()["function"] for call in answer.tool_calls or []]]))
        messages.append(answer.model_dump(exclude_none=True))
        output = "altered output" if turn == alter else f"output {turn}"
        if answer.tool_calls:
            messages.append({"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": output})
        else:
            messages.append({"role": "user", "content": output})
    return said


STEPS = [bash_step("a"), "text", bash_step("b"), bash_step("c")]


async def test_replay_and_hand_over(store: Store) -> None:
    async with Gateway(store, {"s": ScriptEngine(STEPS)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            said = await converse(client, 4)
    recorded = store.session(session.id)
    live = ScriptEngine(["live"], at_end="repeat", policy_version="new")
    engines = {"all": ReplayEngine(recorded), "two": ReplayEngine(recorded, calls=2, then=live)}
    async with Gateway(store, engines) as gateway:
        whole_one, branched, altered = [await gateway.open_session(engine=name) for name in ("all", "two", "all")]
        async with client_of(whole_one) as client:
            assert await converse(client, 4) == said
            with pytest.raises(openai.BadRequestError) as caught:
                await converse(client, 5)
        async with client_of(branched) as client:
            assert await converse(client, 4) == [*said[:2], json.dumps(["live", []]), json.dumps(["live", []])]
        async with client_of(altered) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await converse(client, 4, alter=1)
    assert caught.value.code == "replay_mismatch"
    assert "call 2" in caught.value.message
    assert "message 5 (user)" in caught.value.message
    assert "'output 1'" in caught.value.message
    assert "'altered output'" in caught.value.message
    assert [c.engine for c in store.session(branched.id).calls] == ["replay"] * 2 + ["script"] * 2


async def test_sixty_four_sessions_at_once(store: Store) -> None:
    engine = ScriptEngine(["x"], at_end="repeat", latency=0.05)
    async with Gateway(store, {"s": engine}) as gateway, aiohttp.ClientSession() as http:
        sessions = [await gateway.open_session() for _ in range(64)]

        async def work(url: str) -> None:
            for _ in range(4):
                async with http.post(url + "/v1/chat/completions", json={"messages": USER}) as got:
                    assert got.status == 200

        await asyncio.gather(*(work(session.url) for session in sessions))
    assert all(session.state.turns == 4 for session in sessions)
    assert all(len(store.session(session.id).calls) == 4 for session in sessions)
