"""A harness inside a sandbox without any network reaches its session of the gateway, and no other."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchard.gateway import Gateway, ScriptEngine, bash_step
from orchard.sandbox import Orchard, Sandbox
from orchard.trajectories import Store

CLIENT = """
import json, sys, threading, urllib.error, urllib.request
url, stream, count = sys.argv[1], sys.argv[2] == "stream", int(sys.argv[3])
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
lines = []

def ask():
    request = urllib.request.Request(url + "/chat/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            lines.append([answer.status, answer.read().decode()])
    except urllib.error.HTTPError as error:
        lines.append([error.code, error.read().decode()])
    except OSError as error:
        lines.append([0, str(error)])

threads = [threading.Thread(target=ask) for _ in range(count)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(lines))
"""


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv("ORCHARD_HOME", str(tmp_path / "home"))
    async with Orchard() as orchard, orchard.sandbox("host", network="none", ttl=300) as box:
        await box.files.write("/tmp/client.py", CLIENT.encode())
        yield box


async def ask(box: Sandbox, url: str, mode: str = "whole", count: int = 1) -> list[tuple[int, str]]:
    """Return status and body of each answer that ``count`` requests at once get; status 0: no connection."""
    result = await box.run(["python3", "/tmp/client.py", url, mode, str(count)], timeout=60)
    return [(status, body) for status, body in json.loads(result.check().text)]


async def test_a_sandbox_without_network_reaches_its_session(tmp_path: Path, box: Sandbox) -> None:
    engine = ScriptEngine([bash_step("ls"), "streamed words here"], latency=0.2)
    with Store(tmp_path / "store") as store:
        async with Gateway(store, {"s": engine}) as gateway:
            mine, other = await gateway.open_session(), await gateway.open_session()
            assert [status for status, _ in await ask(box, gateway.url + "/v1")] == [0]
            async with box.reverse(0, mine.target) as tunnel:
                base = f"http://127.0.0.1:{tunnel.port}"
                [(status, whole)] = await ask(box, base + "/v1")
                assert status == 200
                assert json.loads(whole)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "bash"
                [(status, streamed)] = await ask(box, f"{base}/s/{mine.id}/v1", "stream")
                assert status == 200
                assert streamed.endswith("data: [DONE]\n\n")
                assert [status for status, _ in await ask(box, f"{base}/s/{other.id}/v1")] == [401]
        assert [(call.status, call.streamed) for call in store.session(mine.id).calls] == [("ok", False), ("ok", True)]
        assert store.session(other.id).calls == []


async def test_sixteen_at_once_through_one_tunnel(tmp_path: Path, box: Sandbox) -> None:
    engine = ScriptEngine(["x"], at_end="repeat", latency=0.3)
    with Store(tmp_path / "store") as store:
        async with Gateway(store, {"s": engine}) as gateway:
            session = await gateway.open_session()
            async with box.reverse(0, session.target) as tunnel:
                answers = await ask(box, f"http://127.0.0.1:{tunnel.port}/v1", count=16)
        assert [status for status, _ in answers] == [200] * 16
        assert len({json.loads(body)["id"] for _, body in answers}) == 16
        assert len(store.session(session.id).calls) == 16
