"""Work that takes longer than a request may be silent: it is asked for again, and done once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend

from orchard.core.errors import Unsupported
from orchard.core.ids import new_id
from orchard.sandbox.remote import RemoteBackend
from orchard.sandbox.types import SandboxSpec

DIGEST = f"sha256:{'0' * 64}"
SPEC = SandboxSpec("x", labels={"orchard/tenant": "default"})


class Slow(DaemonBackend):
    """Takes its time to commit and to fetch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seconds, self.asked, self.fails = 4.0, 0, False

    async def commit(self, sandbox_id: str, name: str) -> str:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise Unsupported("a change cannot be held")
        return DIGEST

    async def resolve_image(self, image: str) -> str | None:
        return await self.commit(image, image)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.sandbox.remote.backend._ASK_AGAIN", 0.3)
    monkeypatch.setattr("orchard.sandbox.remote.backend._SILENCE", 1.0)


Work = Callable[[RemoteBackend, str], Awaitable[object]]


def commit(remote: RemoteBackend, sandbox_id: str) -> Awaitable[object]:
    return remote.commit(sandbox_id, "image")


def fetch(remote: RemoteBackend, _: str) -> Awaitable[object]:
    return remote.resolve_image("image")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("work", [commit, fetch])
async def test_long_work_has_its_answer_however_long_it_takes(tmp_path: Path, work: Work) -> None:
    slow = Slow(tmp_path)
    with threaded(slow) as url:
        made = await slow.create(SPEC, new_id("k"))
        remote = RemoteBackend(url, retry_window=0.5)
        assert await work(remote, made.id) == DIGEST
        assert slow.asked == 1
        slow.seconds, slow.fails = 0.5, True
        with pytest.raises(Unsupported):
            await work(remote, made.id)
        await remote.close()
        slow.kill(made.id)


async def test_a_service_says_while_work_goes_on_that_it_does(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    with threaded(slow) as url:
        made = await slow.create(SPEC, new_id("k"))
        async with aiohttp.ClientSession() as http:

            async def ask(path: str, body: dict[str, Any], key: str | None) -> tuple[int, dict[str, Any]]:
                headers = {"Idempotency-Key": key} if key else {}
                async with http.post(f"{url}/v1/{path}", json=body, headers=headers) as answer:
                    return answer.status, await answer.json()

            for path, body, word in (
                (f"sandboxes/{made.id}/commit", {"name": "image"}, "committing"),
                ("images", {"image": "x"}, "fetching"),
            ):
                status, problem = await ask(f"{path}?wait=0.1", body, None)
                assert (status, problem["field"]) == (400, "wait")
                assert await ask(f"{path}?wait=0.1", body, "key") == (202, {"status": word})
                status, answer = await ask(f"{path}?wait=60", body, "key")
                assert (status // 100, answer) == (2, {"digest": DIGEST})
        assert slow.asked == 2
        slow.kill(made.id)
