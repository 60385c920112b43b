"""Anthropic messages as the real client sees them, and as Claude Code sends them."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic import AsyncAnthropic
from tests.contract.gateway.conftest import FUNCTIONS, STEPS, ModelServer, events, status, text_chunk
from tests.contract.gateway.failing import Answering, Failing
from tests.support.models import renderer

from orchard.gateway import (
    Budget,
    ContextOverflow,
    EngineRefused,
    EngineUnavailable,
    Final,
    Gateway,
    GatewayConfig,
    OpenAIEngine,
    ScriptedTokens,
    ScriptEngine,
    Session,
    TokenExact,
)
from orchard.trajectories import Store, Usage

TOOLS: Any = [{"name": "bash", "description": "runs", "input_schema": {"type": "object"}}]
USER: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client_of(session: Session, **options: Any) -> AsyncIterator[AsyncAnthropic]:
    options = {"max_retries": 0, "api_key": session.api_key, "base_url": session.url} | options
    async with AsyncAnthropic(**options) as client:
        yield client


async def ask(session: Session, stream: bool, **body: Any) -> Any:
    body = {"model": "m", "max_tokens": 100, "messages": USER} | body
    async with client_of(session) as client:
        if not stream:
            return await client.beta.messages.create(**body)
        async with client.beta.messages.stream(**body) as parts:
            return await parts.get_final_message()


def blocks(answer: Any) -> list[dict[str, Any]]:
    return [block.to_dict() for block in answer.content]


def results(answer: Any) -> list[dict[str, Any]]:
    calls = [block for block in answer.content if block.type == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls]


async def test_whole_and_streamed_say_the_same_and_come_back_as_one_conversation(store: Store) -> None:
    said = []
    async with Gateway(store, {"script": ScriptEngine(STEPS)}) as gateway:
        sessions = [await gateway.open_session(), await gateway.open_session()]
        for session, stream in zip(sessions, (False, True), strict=True):
            history, answers = list(USER), []
            for _ in STEPS:
                answer = await ask(session, stream, messages=history, tools=TOOLS, system="be good")
                history += [{"role": "assistant", "content": blocks(answer)}]
                history += [{"role": "user", "content": results(answer)}] if results(answer) else []
                answers.append(answer)
            said.append([(blocks(one), one.stop_reason, one.usage.to_dict()) for one in answers])
    assert said[0] == said[1]
    assert [block["type"] for block in said[0][0][0]] == ["thinking", "text", "tool_use", "tool_use"]
    assert said[0][0][0][2]["input"] == {"command": "ls -l /"}
    assert [one[1] for one in said[0]] == ["tool_use", "tool_use", "end_turn"]
    assert said[0][2][0] == [{"type": "text", "text": "hello  big world"}]
    assert said[0][0][2]["output_tokens"] > 0
    for session, streamed in zip(sessions, (False, True), strict=True):
        calls = store.session(session.id).calls
        assert [(one.matched, one.kept_messages) for one in calls] == [("root", 0), ("extends", 3), ("extends", 6)]
        assert {(one.dialect, one.streamed) for one in calls} == {("anthropic.messages", streamed)}
        assert calls[0].messages == [{"role": "system", "content": "be good"}, *USER]
        assert calls[0].sampling == {"max_tokens": 100}
        assert store.session(session.id).tools(calls[2].id) == FUNCTIONS


async def test_events_come_in_the_order_that_clients_rely_on(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(STEPS)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            stream = await client.messages.create(
                model="m", max_tokens=9, messages=USER, tools=TOOLS, stream=True, system=[{"type": "text", "text": "s"}]
            )
            got = [event async for event in stream]
    kinds = [event.type.removeprefix("content_") for event in got]
    kinds = [kind for at, kind in enumerate(kinds) if kinds[at - 1 : at] != [kind]]
    block = ["block_start", "block_delta", "block_stop"]
    assert kinds == ["message_start", *block * 4, "message_delta", "message_stop"]
    assert [event.index for event in got if event.type == "content_block_start"] == [0, 1, 2, 3]


BILLING = "x-anthropic-billing-header: cc_version=2.1.332; cc_is_subagent=true; cch=1a2b3;"
CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE: Any = {
    "system": [
        {"type": "text", "text": BILLING},
        {"type": "text", "text": "You are"},
        {"type": "text", "text": "the prompt", **CACHED},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "task", **CACHED}]},
        {"role": "system", "content": "the environment"},
    ],
    "tools": [
        {**TOOLS[0], **CACHED},
        {"name": "Later", "description": "waits", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": '{"session_id": "x"}'},
    "stop_sequences": ["END"], "extra_body": {"top_k": 5, "temperature": 1}, "max_tokens": 2000,
}  # fmt: skip
HEADERS = {"X-Claude-Code-Session-Id": "main", "x-claude-code-agent-id": "helper"}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_claude_code_sends(store: Store, stream: bool) -> None:
    calls = [{"name": "bash", "arguments": {"command": "a"}}, {"name": "bash", "arguments": {"command": "b"}}]
    async with Gateway(
        store, {"script": ScriptEngine([{"calls": calls, "reasoning_content": "hm"}, "done"])}
    ) as gateway:
        session = await gateway.open_session()
        answer = await ask(session, stream, **CLAUDE, extra_headers=HEADERS)
        one, other = results(answer)
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        other |= {"content": [{"type": "text", "text": "no"}, image], "is_error": True}
        found = {"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "Later"}]}
        history = [
            {"role": "user", "content": "task"},
            CLAUDE["messages"][1],
            {"role": "assistant", "content": blocks(answer)},
            {"role": "user", "content": [other, {**one, **CACHED}, {"type": "text", "text": "reminder"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}]},
            {"role": "user", "content": [{**found, "tool_use_id": "t"}]},
        ]
        await ask(session, stream, **CLAUDE | {"messages": history})
    first, second = store.session(session.id).calls
    assert first.messages == [
        {"role": "system", "content": [{"type": "text", "text": "You are"}, {"type": "text", "text": "the prompt"}]},
        {"role": "user", "content": "task"},
        {"role": "system", "content": "the environment"},
    ]
    assert first.tools == FUNCTIONS
    assert first.sampling == {"stop": ["END"], "top_k": 5, "temperature": 1, "max_tokens": 2000}
    assert sorted(first.dropped) == [
        "context_management", "metadata", "output_config.effort", "system.x-anthropic-billing-header", "thinking",
        "tools.Later", "tools.web_search",
    ]  # fmt: skip
    assert first.origin == {"agent": "helper", "parent": "main", "kind": "subagent"}
    tools = store.session(session.id).tools(second.id) or []
    assert [tool["function"]["name"] for tool in tools] == ["bash", "Later"]
    assert second.kept_messages == 4
    prompt = store.session(session.id).prompt(second.id)
    assert prompt[3]["reasoning_content"] == "hm"
    assert [message["role"] for message in prompt[4:]] == ["tool", "tool", "user", "assistant", "tool"]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert [{"type": "text", "text": "no"}, picture] in [message["content"] for message in prompt]
    assert prompt[-1]["content"] == "Later"
    assert "content.is_error" in second.dropped


async def test_thinking_that_is_not_ours_is_dropped(store: Store) -> None:
    thoughts = [
        {"type": "thinking", "thinking": "made up", "signature": "Er8BCkYI"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "said"},
    ]
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway:
        session = await gateway.open_session()
        await ask(session, False, messages=[*USER, {"role": "assistant", "content": thoughts}, *USER])
    (call,) = store.session(session.id).calls
    assert call.messages[1] == {"role": "assistant", "content": "said"}
    assert call.dropped == ["content.thinking", "content.redacted_thinking"]


async def test_tools_come_and_go_within_a_conversation(store: Store) -> None:
    def said(*blocks: Any) -> list[Any]:
        return [*USER, {"role": "assistant", "content": "x"}, {"role": "user", "content": list(blocks)}]

    late = {"name": "late", "input_schema": {"type": "object"}}
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": late}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "bash"}}
    again = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "bash"}}
    text = {"type": "text", "text": "now"}
    async with Gateway(store, {"script": ScriptEngine(["x"], at_end="repeat")}) as gateway:
        session = await gateway.open_session()
        for blocks in ((text, added, gone), (text, gone, again), (gone,)):
            await ask(session, False, tools=TOOLS, messages=said(*blocks))
    recorded = store.session(session.id)
    names = [[tool["function"]["name"] for tool in recorded.tools(call.id)] for call in recorded.calls]
    assert names == [["late"], ["bash"], []]
    assert [call.dropped for call in recorded.calls] == [["tools.bash"], [], ["tools.bash"]]
    prompts = [[message["content"] for message in recorded.prompt(call.id)] for call in recorded.calls]
    assert prompts == [["hi", "x", "now"], ["hi", "x", "now"], ["hi", "x"]]


@pytest.mark.parametrize(
    ("choice", "params"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "bash"}, {"tool_choice": {"type": "function", "function": {"name": "bash"}}}),
    ],
)
async def test_the_choice_of_a_tool_in_other_words(store: Store, choice: Any, params: Any) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"], at_end="repeat")}) as gateway:
        session = await gateway.open_session()
        await ask(session, False, tools=TOOLS, tool_choice=choice)
        await ask(session, False, tool_choice=choice)
    assert [call.sampling for call in store.session(session.id).calls] == [
        {"max_tokens": 100} | params,
        {"max_tokens": 100},
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "no role 'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]}, "container_upload"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "send base64"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image", "source": {}}]}]}, "no model's answer"),
        ({"tool_choice": {"type": "odd"}}, "tool_choice"),
    ],
)
async def test_what_is_refused_is_named(store: Store, body: Any, words: str) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway:
        session = await gateway.open_session()
        with pytest.raises(anthropic.BadRequestError, match=words) as caught:
            await ask(session, False, **body)
    assert error_of(caught.value)["type"] == "invalid_request_error"
    assert (session.state.turns, session.state.refusals) == (0, 1)


def error_of(error: Any) -> dict[str, Any]:
    assert error.body["type"] == "error"
    return error.body["error"]


async def test_errors_before_any_parse_have_the_shape_too(store: Store) -> None:
    config = GatewayConfig(body_bytes=10_000)
    async with Gateway(store, {"script": ScriptEngine(["x"])}, config) as gateway:
        session = await gateway.open_session(budget=Budget(turns=0))
        async with client_of(session, base_url=gateway.url, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await client.messages.create(model="m", max_tokens=1, messages=USER)
            assert error_of(refused.value)["type"] == "authentication_error"
        async with client_of(session) as client:
            with pytest.raises(anthropic.NotFoundError) as missing:
                await client.post("/v1/messages/batches", cast_to=object, body={})
            assert error_of(missing.value)["type"] == "not_found_error"
            with pytest.raises(anthropic.NotFoundError) as unknown:
                await client.models.retrieve("other")
            assert error_of(unknown.value)["type"] == "not_found_error"
            with pytest.raises(anthropic.RequestTooLargeError) as large:
                await client.messages.create(model="m" * 10_000, max_tokens=1, messages=USER)
            assert error_of(large.value)["type"] == "request_too_large"
            with pytest.raises(anthropic.BadRequestError) as spent:
                await client.messages.create(model="m", max_tokens=1, messages=USER, stream=True)
            assert error_of(spent.value)["code"] == "budget_exceeded"


async def test_an_overflow_is_told_as_clients_know_it(store: Store, model_server: ModelServer) -> None:
    for stream in (False, True):
        async with Gateway(store, {"e": Failing(ContextOverflow(900, 800))}) as gateway:
            with pytest.raises(
                anthropic.BadRequestError, match="prompt is too long: 900 tokens > 800 maximum"
            ) as caught:
                await ask(await gateway.open_session(), stream)
            assert error_of(caught.value)["type"] == "invalid_request_error"
    model_server.replies = [status(400, {"error": {"message": "no room", "code": "context_length_exceeded"}})]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: no room"):
            await ask(await gateway.open_session(), True)


async def test_a_final_error_in_mid_stream_is_an_event(store: Store) -> None:
    async with Gateway(store, {"e": Failing(EngineRefused("no"), word="he")}) as gateway:
        session = await gateway.open_session()
        with pytest.raises(anthropic.APIStatusError, match="no") as caught:
            await ask(session, True)
    assert error_of(caught.value)["type"] == "invalid_request_error"
    (call,) = store.session(session.id).calls
    assert (call.status, (call.answer or {})["content"]) == ("aborted", "he")


async def test_a_server_lost_in_mid_stream_breaks_the_stream_off(store: Store, model_server: ModelServer) -> None:
    model_server.replies = [events([text_chunk("he")], done=False)]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session()
        with pytest.raises(aiohttp.ClientPayloadError):
            await raw(session, stream=True)
    (call,) = store.session(session.id).calls
    assert (call.status, (call.answer or {})["content"]) == ("aborted", "he")


async def raw(
    session: Session, seen: Callable[[str], None] = lambda text: None, **body: Any
) -> tuple[aiohttp.ClientResponse, str]:
    """Return a response and its text, without a client's help."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(session.url + "/v1/messages?beta=true", json={"messages": USER} | body) as got,
    ):
        text = ""
        async for line in got.content:
            text += line.decode()
            seen(text)
        return got, text


async def test_a_stream_is_held_while_the_engine_is_away(store: Store) -> None:
    config = GatewayConfig(keep_alive_seconds=0.05, header_grace_seconds=0.05)
    engine = Failing(EngineUnavailable("away"), times=1000)
    async with Gateway(store, {"e": engine}, config) as gateway:
        session = await gateway.open_session()
        got, text = await raw(session, engine.back_after(3, "event: ping"), stream=True)
        answer = await ask(session, True)
    assert (got.status, got.headers["Content-Type"]) == (200, "text/event-stream")
    assert text.count("event: ping") > 2
    assert text.startswith("event: message_start")
    assert '"text": "again"' in text
    assert blocks(answer) == [{"type": "text", "text": "again"}]
    assert session.state.engine_failures > 0


async def test_an_engine_away_for_too_long_is_503_with_a_hint(store: Store) -> None:
    async with Gateway(
        store, {"e": Failing(EngineUnavailable("away"), times=99)}, GatewayConfig(hold_seconds=0.1)
    ) as gateway:
        got, text = await raw(await gateway.open_session())
    assert (got.status, "Retry-After" in got.headers) == (503, True)
    assert json.loads(text)["error"] | {"message": ""} == {
        "type": "api_error",
        "code": "engine_unavailable",
        "message": "",
    }


async def test_why_an_answer_stopped(store: Store) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "[broken"}}
    no_number = {**call, "function": {"name": "bash", "arguments": '{"a": NaN}'}}
    usage = Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=2)
    for reason, message, expected in [
        ("length", {"content": "half"}, ("max_tokens", [{"type": "text", "text": "half"}])),
        ("content_filter", {"content": ""}, ("refusal", [{"type": "text", "text": ""}])),
        ("stop", {"tool_calls": [call]}, ("tool_use", [{"type": "tool_use", "id": "c", "name": "bash", "input": {}}])),
        (
            "stop",
            {"tool_calls": [no_number]},
            ("tool_use", [{"type": "tool_use", "id": "c", "name": "bash", "input": {}}]),
        ),
    ]:
        async with Gateway(store, {"e": Answering(Final({"role": "assistant", **message}, reason, usage))}) as gateway:
            session = await gateway.open_session()
            answer = await ask(session, False)
            _, text = await raw(session, stream=True)
        assert (answer.stop_reason, blocks(answer)) == expected
        assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (5, 4)
        assert f'"stop_reason": "{expected[0]}"' in text


@pytest.mark.parametrize("told", [None, "END"])
async def test_the_string_that_stopped_an_answer_is_named(store: Store, told: str | None) -> None:
    final = Final({"role": "assistant", "content": "one "}, "stop", Usage(completion_tokens=2), stop_string=told)
    expected = ("end_turn", None) if told is None else ("stop_sequence", "END")
    async with Gateway(store, {"e": Answering(final)}) as gateway:
        session = await gateway.open_session()
        answer = await ask(session, False)
        _, text = await raw(session, stream=True)
    assert (answer.stop_reason, answer.stop_sequence) == expected
    assert f'"stop_reason": {json.dumps(expected[0])}, "stop_sequence": {json.dumps(expected[1])}' in text


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
async def test_engines_tell_which_string_stopped_an_answer(store: Store, model_server: ModelServer, name: str) -> None:
    qwen3 = renderer("qwen3")
    choice = {"message": {"role": "assistant", "content": "one "}, "finish_reason": "stop", name: "END"}
    model_server.replies = [status(200, {"choices": [choice]}), status(200, {"choices": [choice | {name: 151645}]})]
    tokens = TokenExact(ScriptedTokens(qwen3, ["one END two"]), qwen3)
    async with Gateway(store, {"text": OpenAIEngine(model_server.url), "ids": tokens}) as gateway:
        found: list[Any] = []
        for engine in ("text", "text", "ids"):
            session = await gateway.open_session(engine=engine)
            body = {"model": "m", "max_tokens": 99, "messages": USER, "stop_sequences": ["two", "END"]}
            async with aiohttp.ClientSession() as http, http.post(f"{session.url}/v1/messages", json=body) as got:
                answer = await got.json()
                found.append((answer["content"][0]["text"], answer["stop_reason"], answer["stop_sequence"]))
    ended, by_id = ("one ", "stop_sequence", "END"), ("one ", "end_turn", None)
    assert found == [ended, by_id, ended]


async def test_tokens_are_counted_by_the_engine_where_it_can(store: Store) -> None:
    class Counting(ScriptEngine):
        async def count_tokens(self, messages: Any, tools: Any) -> int:
            return 100 * len(messages) + len(tools)

    engines: Any = {"counting": Counting([]), "script": ScriptEngine([])}
    async with Gateway(store, engines) as gateway:
        counting, guessing = await gateway.open_session(), await gateway.open_session(engine="script")
        async with client_of(counting) as client:
            exact = await client.messages.count_tokens(model="m", messages=USER, system="s", tools=TOOLS)
        async with client_of(guessing) as client:
            guess = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x" * 400}])
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.count_tokens(model="m", messages=[])
    assert exact.to_dict() == {"input_tokens": 201}
    assert 100 <= guess.input_tokens < 120
    assert guess.to_dict()["estimated"] is True
    assert (counting.state.turns, guessing.state.turns) == (0, 0)


async def test_models_in_the_shape_of_who_asks(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine([])}) as gateway:
        session = await gateway.open_session(model="toy", aliases=["claude-sonnet"])
        async with client_of(session) as client:
            listed = await client.models.list()
            assert [(model.id, model.type) for model in listed.data] == [("toy", "model"), ("claude-sonnet", "model")]
            assert (await client.models.retrieve("claude-sonnet")).display_name == "claude-sonnet"
        async with aiohttp.ClientSession() as http:
            async with http.get(session.url + "/api/v1/models") as got:
                assert [model["object"] for model in (await got.json())["data"]] == ["model", "model"]
            async with http.post(session.url + "/api/show", json={}) as got:
                assert got.status == 404


async def test_keys_in_either_header(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"], at_end="repeat")}) as gateway:
        session = await gateway.open_session()
        bearer = AsyncAnthropic(base_url=gateway.url, auth_token=session.api_key, max_retries=0)
        async with bearer as client:
            await client.messages.create(model="m", max_tokens=1, messages=USER)
        both = {"Authorization": "Bearer x", "x-api-key": session.api_key}
        async with (
            aiohttp.ClientSession(headers=both) as http,
            http.post(gateway.url + "/v1/messages", json={"messages": USER}) as got,
        ):
            assert got.status == 200
        async with client_of(session, base_url=session.url + "/v1", api_key="any") as client:
            await client.messages.create(model="m", max_tokens=1, messages=USER)
    assert session.state.turns == 3
