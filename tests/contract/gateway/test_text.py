"""What model servers and harnesses send in other forms than text that UTF-8 can carry."""

import json
from typing import Any

import aiohttp
import openai
import pytest
from tests.contract.gateway.conftest import END_CHUNK, USER, ModelServer, client_of, events, status, text_chunk, whole

from orchard.gateway import Gateway, OpenAIEngine, Session
from orchard.trajectories import Store

HALF = "a\ud800b \ud83d\ude00 \N{GRINNING FACE}"
"""Two halves that stand alone, a pair that was cut in two, and a whole character."""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_half_of_a_surrogate_pair_becomes_text(store: Store, model_server: ModelServer, stream: bool) -> None:
    logprobs = {"content": [{"token": "\udfff", "logprob": -1.0}]}
    if stream:
        model_server.replies = [events([text_chunk(piece, logprobs=logprobs) for piece in HALF] + [END_CHUNK])]
    else:
        model_server.replies = [whole(HALF, choice={"logprobs": logprobs})]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session(model="m")
        body = {"model": "m", "messages": [{"role": "user", "content": "\udc00?"}], "stream": stream, "logprobs": True}
        text, raw = await answered(session, body)
        history = [*body["messages"], {"role": "assistant", "content": text}, *USER]
        model_server.replies = [whole("ok")]
        await answered(session, body | {"messages": history, "stream": False})
    assert "\\ud8" not in raw.replace("\\ud83d\\ude00", "")
    assert "\\udf" not in raw
    pair = "\ufffd\ufffd" if stream else "\N{GRINNING FACE}"
    assert text == f"a\ufffdb {pair} \N{GRINNING FACE}"
    assert model_server.bodies[0]["messages"][0]["content"] == "\ufffd?"
    first, second = store.session(session.id).calls
    assert first.answer == {"role": "assistant", "content": text}
    assert (second.parent, second.matched) == (first.id, "extends")
    assert_utf8(store)


async def answered(session: Session, body: dict[str, Any]) -> tuple[str, str]:
    """Return the text of an answer, and its bytes as they came."""
    async with aiohttp.ClientSession() as http, http.post(session.url + "/v1/chat/completions", json=body) as response:
        raw = await response.text()
    if not body["stream"]:
        return json.loads(raw)["choices"][0]["message"]["content"], raw
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks), raw


async def test_what_a_server_refuses_with_is_text_too(store: Store, model_server: ModelServer) -> None:
    model_server.replies = [status(400, {"error": {"message": "no \ud800"}})]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=USER)
    assert refused.value.body == {"message": "no \ufffd"}
    assert_utf8(store)


def assert_utf8(store: Store) -> None:
    for record in store.records():
        record.model_dump_json().encode()


PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "he"}, "llo"]


@pytest.mark.parametrize("stream", [False, True])
async def test_text_in_parts_and_arguments_as_objects_reach_the_harness_as_text(
    store: Store, model_server: ModelServer, stream: bool
) -> None:
    calls = [{"index": 0, "id": "c", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}]
    if stream:
        chunks = [{"choices": [{"index": 0, "delta": {"content": [part]}}]} for part in PARTS]
        last = {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
        model_server.replies = [events([*chunks, last])]
    else:
        message = {"role": "assistant", "content": PARTS, "tool_calls": calls}
        model_server.replies = [whole("", choice={"message": message})]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            if stream:
                async with client.chat.completions.stream(model="m", messages=USER) as parts:
                    got = (await parts.get_final_completion()).choices[0].message
            else:
                got = (await client.chat.completions.create(model="m", messages=USER)).choices[0].message
    assert got.content == "hello"
    assert got.tool_calls
    assert got.tool_calls[0].function.arguments == '{"command": "ls"}'  # pyright: ignore
    (call,) = store.session(session.id).calls
    assert call.answer is not None
    assert (call.answer["content"], call.answer["reasoning_content"]) == ("hello", "hm")
    assert call.answer["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}'


async def test_an_answer_in_pictures_is_refused_by_name(store: Store, model_server: ModelServer) -> None:
    message = {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    model_server.replies = [whole("", choice={"message": message})]
    async with Gateway(store, {"o": OpenAIEngine(model_server.url)}) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            with pytest.raises(openai.BadRequestError, match="image_url"):
                await client.chat.completions.create(model="m", messages=USER)
    assert (session.state.error_code, len(model_server.bodies)) == ("engine_refused", 1)
