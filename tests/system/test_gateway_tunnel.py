"""A harness inside a sandbox without any network reaches its session of the gateway, and no other."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchard.gateway import Gateway, GatewayConfig, ScriptEngine, Session, bash_step
from orchard.sandbox import Orchard, Sandbox
from orchard.trajectories import Store

CLIENT = """
import json, sys, urllib.error, urllib.request
url, stream = sys.argv[1], sys.argv[2] == "stream"
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
request = urllib.request.Request(url + "/chat/completions", body, {"Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("no network:", error)
"""


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv("ORCHARD_HOME", str(tmp_path / "home"))
    async with Orchard() as orchard, orchard.sandbox("host", network="none", ttl=300) as box:
        await box.files.write("/tmp/client.py", CLIENT.encode())
        yield box


async def ask(box: Sandbox, url: str, mode: str = "whole") -> str:
    result = await box.run(["python3", "/tmp/client.py", url, mode], timeout=60)
    assert result.ok, result.error_text
    return result.text.strip()


async def test_a_sandbox_without_network_reaches_its_session(tmp_path: Path, box: Sandbox) -> None:
    engine = ScriptEngine([bash_step("ls"), "streamed words here"], latency=0.2)
    with Store(tmp_path / "store") as store:
        async with Gateway(store, {"s": engine}) as gateway:
            mine, other = await gateway.open_session(), await gateway.open_session()
            assert (await ask(box, gateway.url + "/v1")).startswith("no network")
            async with box.reverse(0, mine.target) as tunnel:
                base = f"http://127.0.0.1:{tunnel.port}"
                whole = await ask(box, base + "/v1")
                assert whole.startswith("200 ")
                assert json.loads(whole[4:])["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "bash"
                streamed = await ask(box, f"{base}/s/{mine.id}/v1", "stream")
                assert streamed.endswith("data: [DONE]")
                assert (await ask(box, f"{base}/s/{other.id}/v1")).startswith("401 ")
        assert [(call.status, call.streamed) for call in store.session(mine.id).calls] == [("ok", False), ("ok", True)]
        assert store.session(other.id).calls == []


async def test_sixteen_at_once_through_one_tunnel(tmp_path: Path, box: Sandbox) -> None:
    engine = ScriptEngine(["x"], at_end="repeat", latency=0.3)
    with Store(tmp_path / "store") as store:
        async with Gateway(store, {"s": engine}, GatewayConfig()) as gateway:
            session: Session = await gateway.open_session()
            async with box.reverse(0, session.target) as tunnel:
                url = f"http://127.0.0.1:{tunnel.port}/v1"
                answers = await asyncio.gather(*(ask(box, url) for _ in range(16)))
        assert all(answer.startswith("200 ") for answer in answers)
        assert len({json.loads(answer[4:])["id"] for answer in answers}) == 16
        assert len(store.session(session.id).calls) == 16
