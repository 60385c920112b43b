"""An answer leaves after its record is on disk; a retry gets the recorded one; what is cut is recorded as cut."""

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from tests.contract.gateway.conftest import USER, client_of, until

from orchard.core.errors import StoreFailed
from orchard.gateway import Delta, EngineRequest, Final, Gateway, ScriptEngine, Session
from orchard.trajectories import AnyRecord, CallRecord, Store

BODY = {"model": "m", "messages": USER}
RETRY = {"x-stainless-retry-count": "1"}


class GatedStore(Store):
    """A real store whose disk is slow to order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.full = False

    async def append(self, record: AnyRecord) -> None:
        if isinstance(record, CallRecord):
            if self.full:
                raise StoreFailed(os.strerror(errno.ENOSPC), reason="no_space")
            self.waiting.set()
            await self.gate.wait()
        await super().append(record)


class Counting(ScriptEngine):
    """A script whose every answer is another."""

    def __init__(self, latency: float = 0.0) -> None:
        self.calls = 0
        super().__init__(self._next, latency=latency)

    def _next(self, *_: Any) -> str:
        self.calls += 1
        return f"answer number {self.calls}"


async def post(http: aiohttp.ClientSession, session: Session, headers: Any = None, **extra: Any) -> dict[str, Any]:
    async with http.post(session.url + "/v1/chat/completions", json=BODY | extra, headers=headers) as got:
        return await got.json() | {"status": got.status}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


async def test_a_whole_answer_waits_for_the_disk(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    store = GatedStore(tmp_path)
    async with Gateway(store, {"s": Counting()}) as gateway:
        session = await gateway.open_session()
        ask = asyncio.ensure_future(post(http, session))
        await store.waiting.wait()
        await asyncio.sleep(0.1)
        assert not ask.done()
        assert session.state.turns == 0
        store.gate.set()
        assert (await ask)["status"] == 200
        assert session.state.turns == 1
    store.close()


async def test_the_end_of_a_stream_waits_for_the_disk(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    store = GatedStore(tmp_path)
    async with Gateway(store, {"s": Counting()}) as gateway:
        session = await gateway.open_session()
        async with http.post(session.url + "/chat/completions", json=BODY | {"stream": True}) as got:
            early = b""
            while b'"content": "1"' not in early:  # the last of what is sent before the record
                early += await got.content.readany()
            await store.waiting.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    early += await got.content.readany()
            assert b'"stop"' not in early
            assert b"[DONE]" not in early
            store.gate.set()
            rest = await got.content.read()
        assert b'"finish_reason": "stop"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
    store.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_disk_is_an_answer_that_may_be_retried(tmp_path: Path, stream: bool) -> None:
    store = GatedStore(tmp_path)
    store.gate.set()
    store.full = True
    engine = Counting()
    async with Gateway(store, {"s": engine}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            if stream:
                with pytest.raises(
                    (openai.APIConnectionError, openai.APIError, aiohttp.ClientError, Exception)
                ) as broken:
                    async for _ in await client.chat.completions.create(model="m", messages=USER, stream=True):
                        pass
                assert "peer closed" in str(broken.value) or isinstance(broken.value, openai.OpenAIError)
            else:
                with pytest.raises(openai.InternalServerError) as caught:
                    await client.chat.completions.create(model="m", messages=USER)
                assert (caught.value.status_code, caught.value.code) == (503, "store_failed")
                assert float(caught.value.response.headers["retry-after"]) > 0
            assert (session.state.turns, session.state.error_code) == (0, "store_failed")
            store.full = False
            again = await client.chat.completions.create(model="m", messages=USER, stream=False)
        assert again.choices[0].message.content == f"answer number {engine.calls}"
        assert engine.calls == 2
    assert [c.status for c in store.session(session.id).calls] == ["ok"]
    store.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_gets_the_recorded_answer(store: Store, stream: bool) -> None:
    engine = Counting()
    async with Gateway(store, {"s": engine}) as gateway:
        session = await gateway.open_session()

        async def ask(headers: Any = None) -> tuple[str, str]:
            async with client_of(session) as client:
                if not stream:
                    one = await client.chat.completions.create(model="m", messages=USER, extra_headers=headers)
                    return one.id, one.choices[0].message.content or ""
                async with client.chat.completions.stream(model="m", messages=USER, extra_headers=headers) as parts:
                    one = await parts.get_final_completion()
                    return one.id, one.choices[0].message.content or ""

        first = await ask()
        assert first[1] == "answer number 1"
        assert await ask(RETRY) == first
        assert await ask(RETRY) == first
        assert (await ask())[1] == "answer number 2"  # an equal body without a header is another sample
    recorded = store.session(session.id)
    assert len(recorded.calls) == 2
    assert [r.call for r in recorded.retries] == [recorded.calls[0].id] * 2
    assert (session.state.turns, session.state.retries) == (2, 2)


async def send_and_go(session: Session, body: dict[str, Any], *, read: int = 0) -> None:
    """Send a request on a bare connection, read some bytes of the answer, and break off."""
    host, port = session.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST /s/{session.id}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    if read:
        await reader.readexactly(read)
    else:
        await until(lambda: session.state.last_call)
    writer.transport.abort()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("wait", [0.0, 1.0])
async def test_an_answer_that_could_not_be_written_is_given_again(
    store: Store, http: aiohttp.ClientSession, wait: float
) -> None:
    engine = Counting(latency=0.8)
    async with Gateway(store, {"s": engine}) as gateway:
        session = await gateway.open_session()
        await send_and_go(session, BODY)
        await asyncio.sleep(wait)  # while it is still running, and after it is done
        answer = await post(http, session)
        assert answer["choices"][0]["message"]["content"] == "answer number 1"
        assert engine.calls == 1
        assert (await post(http, session))["choices"][0]["message"]["content"] == "answer number 2"
    recorded = store.session(session.id)
    assert (len(recorded.calls), len(recorded.retries)) == (2, 1)


async def test_a_stream_lost_after_its_last_token_is_given_again(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    store, engine = GatedStore(tmp_path), Counting()
    async with Gateway(store, {"s": engine}) as gateway:
        session = await gateway.open_session()
        await send_and_go(session, BODY | {"stream": True}, read=600)  # all deltas, while the record is being written
        await store.waiting.wait()
        store.gate.set()
        await until(lambda: session.state.turns)
        async with http.post(session.url + "/v1/chat/completions", json=BODY | {"stream": True}) as got:
            text = await got.text()
        assert '"content": "1"' in text
        assert text.endswith("data: [DONE]\n\n")
        assert (engine.calls, session.state.retries, session.state.aborted) == (1, 1, 0)
    store.close()


async def test_a_retry_joins_the_call_that_is_still_running(store: Store, http: aiohttp.ClientSession) -> None:
    engine = Counting(latency=0.3)
    async with Gateway(store, {"s": engine}) as gateway:
        session = await gateway.open_session()
        first = asyncio.ensure_future(post(http, session))
        await until(lambda: session.state.last_call)
        again = await post(http, session, RETRY)
        assert again["id"] == (await first)["id"]
        other = await asyncio.gather(post(http, session), post(http, session))
        assert other[0]["id"] != other[1]["id"]  # two equal bodies at once, both waited for: two samples
    assert engine.calls == 3


async def test_a_cut_stream_is_recorded_with_what_had_arrived(store: Store, http: aiohttp.ClientSession) -> None:
    started = asyncio.Event()

    class Slow(ScriptEngine):
        async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
            async for part in super().complete(request):
                yield part
                if getattr(part, "delta", {}).get("content") == "two ":
                    started.set()
                    await asyncio.sleep(30)

    async with Gateway(store, {"s": Slow(["one two three"])}) as gateway:
        session = await gateway.open_session()
        asking = asyncio.ensure_future(send_and_go(session, BODY | {"stream": True}, read=400))
        await started.wait()
        await asking
        await until(lambda: session.state.aborted)
        (call,) = store.session(session.id).calls
    assert (call.status, call.answer and call.answer["content"]) == ("aborted", "one two ")
    assert session.state.turns == 0
    assert store.session(session.id).branches() == []


async def test_a_stream_that_is_being_cut_is_sampled_anew(store: Store, http: aiohttp.ClientSession) -> None:
    class Stubborn(Counting):
        """Takes a while to stop."""

        async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
            async for part in super().complete(request):
                yield part
                try:
                    await asyncio.sleep(30 if self.calls == 1 else 0)
                finally:
                    await asyncio.shield(asyncio.sleep(0.3 if self.calls == 1 else 0))

    async with Gateway(store, {"s": Stubborn()}) as gateway:
        session = await gateway.open_session()
        await send_and_go(session, BODY | {"stream": True}, read=200)
        async with http.post(session.url + "/v1/chat/completions", json=BODY | {"stream": True}, headers=RETRY) as got:
            text = await got.text()
        assert '"2"' in text
        assert text.endswith("data: [DONE]\n\n")
        await until(lambda: session.state.aborted)
    assert [c.status for c in store.session(session.id).calls] == ["aborted", "ok"]


_SERVE = """
import asyncio, sys
from pathlib import Path
from orchard.gateway import Delta, EngineRequest, Final, Gateway, ScriptEngine
from orchard.trajectories import Store

class Slow(ScriptEngine):
    async def complete(self, request):
        if request.turn == 5:
            await asyncio.sleep(60)
        async for part in super().complete(request):
            yield part

async def main():
    async with Gateway(Store(Path(sys.argv[1])), {"s": Slow(["x"], at_end="repeat")}) as gateway:
        session = await gateway.open_session()
        print(session.url, session.id, session.target, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_kill_9_in_mid_answer(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVE, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url, session_id, target = (await process.stdout.readline()).decode().split()
    ids = []
    for _ in range(5):
        async with http.post(url + "/v1/chat/completions", json=BODY) as got:
            ids.append((await got.json())["id"])
    hanging = asyncio.ensure_future(http.post(url + "/v1/chat/completions", json=BODY))
    await asyncio.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await hanging
    await process.wait()
    with Store(tmp_path) as store:
        assert [c.response_id for c in store.session(session_id).calls] == ids
        (left,) = store.aborted()
        assert (left.session, left.live) == (session_id, False)
        folder = Path(target.removeprefix("unix:")).parent
        async with Gateway(store, {"s": ScriptEngine(["x"])}):
            assert not folder.exists()  # the next gateway of this machine sweeps what the killed one left
