"""The examples of the gateway's page run as they stand."""

import re
from pathlib import Path
from typing import Any

import aiohttp

from orchard.gateway import Engine, Gateway
from orchard.trajectories import Store

PAGE = Path(__file__).parents[3] / "docs" / "gateway.md"


def examples() -> list[dict[str, Any]]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: list[dict[str, Any]] = []
    for block in blocks:
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(block, str(PAGE), "exec"), names)
        found.append(names)
    return found


async def test_the_examples(tmp_path: Path) -> None:
    first, parrot, query = examples()
    await first["main"](tmp_path / "a")
    engine: Engine = parrot["Parrot"]()
    with Store(tmp_path / "b") as store:
        async with Gateway(store, {"parrot": engine}) as gateway:
            session = await gateway.open_session()
            body = {"messages": [{"role": "user", "content": "hello"}]}
            async with (
                aiohttp.ClientSession() as http,
                http.post(session.url + "/v1/chat/completions", json=body) as got,
            ):
                assert (await got.json())["choices"][0]["message"]["content"] == "hello"
    assert query["good"](tmp_path / "a") == []
