"""OpenAI responses as the real client sees them, and as Codex sends them."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest
from tests.contract.gateway.conftest import FUNCTIONS, STEPS, ModelServer, client_of, status, text_chunk
from tests.contract.gateway.conftest import events as chat_events
from tests.contract.gateway.failing import Answering, Failing

from orchard.gateway import (
    Budget,
    ContextOverflow,
    EngineRefused,
    EngineUnavailable,
    Final,
    Gateway,
    GatewayConfig,
    OpenAIEngine,
    ScriptEngine,
    Session,
)
from orchard.trajectories import Store, Usage

TOOLS: Any = [{"type": "function", "name": "bash", "description": "runs", "parameters": {"type": "object"}}]


async def ask(session: Session, stream: bool, **body: Any) -> Any:
    async with client_of(session) as client:
        if not stream:
            return await client.responses.create(model="m", **body)
        async with client.responses.stream(model="m", **body) as events:
            return await events.get_final_response()


def plain(response: Any) -> list[dict[str, Any]]:
    """What an answer holds, without ids and without what the client adds to it."""
    items = []
    for item in response.output:
        facts = {name: value for name, value in item.to_dict().items() if not name.startswith(("id", "parsed"))}
        for part in facts.get("content", []):
            part.pop("parsed", None)
        items.append(facts)
    return items


def results(response: Any) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]


async def test_whole_and_streamed_say_the_same_and_come_back_as_one_conversation(store: Store) -> None:
    said = []
    async with Gateway(store, {"script": ScriptEngine(STEPS)}) as gateway:
        sessions = [await gateway.open_session(), await gateway.open_session()]
        for session, stream in zip(sessions, (False, True), strict=True):
            history: list[Any] = [{"role": "user", "content": "hi"}]
            answers = []
            for _ in STEPS:
                answer = await ask(session, stream, input=history, tools=TOOLS, instructions="be good")
                history += [item.to_dict() for item in answer.output] + results(answer)
                answers.append(answer)
            said.append([(plain(one), one.status, one.output_text, one.usage.total_tokens) for one in answers])
    assert said[0] == said[1]
    assert [item["type"] for item in said[0][0][0]] == ["reasoning", "message", "function_call", "function_call"]
    assert said[0][2][2] == "hello  big world"
    for session, streamed in zip(sessions, (False, True), strict=True):
        calls = store.session(session.id).calls
        assert [(one.matched, one.kept_messages) for one in calls] == [("root", 0), ("extends", 3), ("extends", 6)]
        assert {(one.dialect, one.streamed) for one in calls} == {("openai.responses", streamed)}
        assert calls[0].messages == [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
        assert calls[1].messages[0]["role"] == "tool"
        assert store.session(session.id).tools(calls[2].id) == FUNCTIONS


async def test_events_come_in_the_order_that_clients_rely_on(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(STEPS)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            stream = await client.responses.create(model="m", input="hi", tools=TOOLS, stream=True)
            events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    kinds = [kind for at, kind in enumerate(kinds) if kinds[at - 1 : at] != [kind]]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        *call, *call, "completed",
    ]  # fmt: skip


def text_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


PNG = "data:image/png;base64,AA=="
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
CODEX: Any = {
    "input": [
        {"type": "message", "role": "developer", "content": [text_part("system")]},
        {"type": "message", "role": "user", "content": [text_part("a"), text_part("b")]},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
        {"type": "custom", "name": "apply_patch", "description": "edits", "format": GRAMMAR},
        {"type": "namespace", "name": "multi_agent_v1", "tools": [{**TOOLS[0], "name": "spawn_agent"}]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "high", "summary": "auto"},
    "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
}  # fmt: skip
CODEX_HEADERS = {
    "thread-id": "t2", "x-codex-parent-thread-id": "t1", "x-openai-subagent": "collab_spawn",
    "x-codex-turn-metadata": json.dumps({"request_kind": "turn"}),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_what_codex_sends(store: Store, stream: bool) -> None:
    calls = [
        {"name": "multi_agent_v1__spawn_agent", "arguments": {"task": "x"}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
    ]
    async with Gateway(store, {"script": ScriptEngine([{"calls": calls}, "done"])}) as gateway:
        session = await gateway.open_session()
        answer = await ask(session, stream, **CODEX, extra_headers=CODEX_HEADERS)
        spawn, patch = answer.output
        assert (spawn.type, spawn.name, spawn.namespace) == ("function_call", "spawn_agent", "multi_agent_v1")
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", "*** Begin")
        more = [
            {**spawn.to_dict()},
            {**patch.to_dict()},
            {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "patched"},
            {
                "type": "function_call_output",
                "call_id": spawn.call_id,
                "output": [{"type": "input_text", "text": "up"}],
            },
        ]
        await ask(session, stream, **CODEX | {"input": [*CODEX["input"], *more]})
    first, second = store.session(session.id).calls
    names = [tool["function"]["name"] for tool in store.session(session.id).tools(first.id) or []]
    assert names == ["exec_command", "apply_patch", "multi_agent_v1__spawn_agent"]
    assert "lark grammar:\nstart: X" in (first.tools or [])[1]["function"]["description"]
    assert first.messages == [
        {"role": "system", "content": "system"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert first.sampling == {"tool_choice": "auto", "parallel_tool_calls": True, "reasoning_effort": "high"}
    assert sorted(first.dropped) == ["include", "prompt_cache_key", "tools.web_search"]
    assert first.origin == {"agent": "t2", "parent": "t1", "kind": "subagent"}
    assert (second.matched, second.kept_messages) == ("extends", 3)
    assert [(one["role"], one["content"]) for one in second.messages] == [("tool", "patched"), ("tool", "up")]


async def test_items_of_one_answer_are_told_by_their_ids(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(STEPS)}) as gateway:
        session = await gateway.open_session()
        first = await ask(session, False, input="hi", tools=TOOLS)
        thought, text, *calls = [item.to_dict() for item in first.output]
        one, other = results(first)
        mixed = [{"role": "user", "content": "hi"}, thought, text, calls[0], one, calls[1], other]
        await ask(session, False, input=mixed, tools=TOOLS)
        foreign = [{key: value for key, value in item.items() if key != "id"} for item in mixed]
        await ask(session, False, input=foreign, tools=TOOLS)
    _, joined, apart = store.session(session.id).calls
    assert (joined.matched, joined.kept_messages) == ("extends", 2)
    assert [message["role"] for message in joined.messages] == ["tool", "tool"]
    assert (apart.matched, apart.kept_messages) == ("forked", 1)
    assert [message["role"] for message in apart.messages] == ["assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"previous_response_id": "resp_1"}, "send the whole input"),
        ({"conversation": "c"}, "send the whole input"),
        ({"background": True}, "waits for it"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "compaction"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"input": []}, "input must not be empty"),
        ({"tool_choice": {"type": "web_search"}, "tools": TOOLS}, "web_search"),
        ({"tools": [*TOOLS, *TOOLS]}, "two tools"),
    ],
)
async def test_what_is_refused_is_named(store: Store, body: Any, words: str) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway:
        session = await gateway.open_session()
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            await ask(session, False, **{"input": "hi"} | body)
    assert caught.value.code == "invalid_argument"
    assert (session.state.turns, session.state.refusals) == (0, 1)


async def test_hosted_calls_in_a_history_are_dropped_by_name(store: Store) -> None:
    items: Any = [
        {"role": "user", "content": [text_part("see"), {"type": "input_image", "image_url": PNG, "detail": "low"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"},
    ]  # fmt: skip
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway:
        session = await gateway.open_session()
        await ask(session, False, input=items, text={"format": {"type": "json_object"}}, max_output_tokens=7)
    (call,) = store.session(session.id).calls
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    assert call.messages == [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]
    assert call.dropped == ["input.web_search_call", "input.reasoning.encrypted_content"]
    assert call.sampling == {"max_completion_tokens": 7, "response_format": {"type": "json_object"}}


async def raw(
    session: Session, seen: Callable[[str], None] = lambda text: None, **body: Any
) -> tuple[int, list[dict[str, Any]], Any]:
    """Return the status, the events and the body of a streamed request without a client's help."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(session.url + "/v1/responses", json={"input": "hi", "stream": True} | body) as got,
    ):
        text = ""
        async for line in got.content:
            text += line.decode()
            seen(text)
        return got.status, [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")], got


async def test_an_overflow_is_told_as_clients_know_it(store: Store) -> None:
    async with Gateway(store, {"e": Failing(ContextOverflow(900, 800))}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            with pytest.raises(openai.BadRequestError, match="maximum context length is 800") as caught:
                await client.responses.create(model="m", input="hi")
        assert caught.value.code == "context_length_exceeded"
    async with Gateway(store, {"e": Failing(ContextOverflow(900, 800))}) as gateway:
        session = await gateway.open_session()
        code, events, _ = await raw(session)
    assert code == 200
    assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == events[-2]["code"] == "context_length_exceeded"
    assert session.state.error_code == "context_length_exceeded"


async def test_an_overflow_that_a_server_tells_is_one(store: Store, model_server: ModelServer) -> None:
    model_server.replies = [status(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        code, events, _ = await raw(await gateway.open_session())
    assert (code, events[-1]["response"]["error"]) == (200, {"code": "context_length_exceeded", "message": "too long"})


async def test_a_final_error_in_mid_stream_is_final_for_codex_too(store: Store) -> None:
    async with Gateway(store, {"e": Failing(EngineRefused("no"), word="he")}) as gateway:
        session = await gateway.open_session()
        _, events, _ = await raw(session)
    assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": "invalid_prompt", "message": "no"}
    (call,) = store.session(session.id).calls
    assert (call.status, (call.answer or {})["content"]) == ("aborted", "he")


async def test_a_server_lost_in_mid_stream_breaks_the_stream_off(store: Store, model_server: ModelServer) -> None:
    model_server.replies = [chat_events([text_chunk("he")], done=False)]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session()
        with pytest.raises(aiohttp.ClientPayloadError):
            await raw(session)
    (call,) = store.session(session.id).calls
    assert (call.status, (call.answer or {})["content"]) == ("aborted", "he")


async def test_a_stream_is_held_while_the_engine_is_away(store: Store) -> None:
    config = GatewayConfig(keep_alive_seconds=0.05, header_grace_seconds=0.05)
    engine = Failing(EngineUnavailable("away"), times=1000)
    async with Gateway(store, {"e": engine}, config) as gateway:
        session = await gateway.open_session()
        code, events, got = await raw(session, engine.back_after(3, '"type": "response.in_progress"'))
        answer = await ask(session, True, input="more")
    kinds = [event["type"] for event in events]
    assert (code, got.headers["Content-Type"]) == (200, "text/event-stream")
    assert kinds.count("response.in_progress") > 2
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert answer.output_text == "again"
    assert session.state.engine_failures > 0


async def test_an_engine_away_for_too_long_is_503_with_a_hint(store: Store) -> None:
    config = GatewayConfig(hold_seconds=0.1)
    async with Gateway(store, {"e": Failing(EngineUnavailable("away"), times=99)}, config) as gateway:
        session = await gateway.open_session()
        async with (
            aiohttp.ClientSession() as http,
            http.post(session.url + "/v1/responses", json={"input": "hi"}) as got,
        ):
            body = await got.json()
    assert (got.status, "Retry-After" in got.headers) == (503, True)
    assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "engine_unavailable")


async def test_an_answer_cut_by_its_length_is_incomplete(store: Store) -> None:
    usage = Usage(prompt_tokens=9, cached_tokens=4)
    cut = Final({"role": "assistant", "content": "half"}, "length", usage)
    async with Gateway(store, {"e": Answering(cut)}) as gateway:
        session = await gateway.open_session()
        whole = await ask(session, False, input="hi")
        _, events, _ = await raw(session)
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert (whole.usage.input_tokens, whole.usage.input_tokens_details.cached_tokens) == (9, 4)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "half"


async def test_errors_before_any_parse_have_the_shape_too(store: Store) -> None:
    async with Gateway(store, {"script": ScriptEngine(["x"])}) as gateway:
        session = await gateway.open_session(budget=Budget(turns=0))
        async with client_of(session, base_url=gateway.url + "/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.responses.create(model="m", input="hi")
        async with client_of(session) as client:
            with pytest.raises(openai.NotFoundError, match="/responses/compact is not served"):
                await client.post("/responses/compact", cast_to=object, body={"input": []})
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="m", input="hi", stream=True)
    assert caught.value.code == "budget_exceeded"
