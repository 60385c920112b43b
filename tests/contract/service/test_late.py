"""What goes on after an answer: a create that was given up at one replica and is made by another only afterwards."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend
from tests.support.waiting import until

from orchard.sandbox.protocol import Shared
from orchard.sandbox.types import Page, SandboxInfo, SandboxSpec
from orchard.service.keys import KEY_LABEL


class SharedDaemons(DaemonBackend):
    """As a cluster is to its replicas: one store of all of them, in which a create may have to wait for its turn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.turn, self.waiting = threading.Event(), threading.Event()
        self.deleted = list[str]()

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self.waiting.set()
        await asyncio.to_thread(self.turn.wait, 60)
        return await super().create(spec, key)

    async def create_within(self, spec: SandboxSpec, key: str, most: int) -> SandboxInfo:
        return await self.create(spec, key)

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        page = await super().list()
        return Page([info for info in page.items if (labels or {}).items() <= info.labels.items()])

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        self.deleted.append(sandbox_id)
        await super().delete(sandbox_id, wait=wait)

    async def living(self) -> int:
        return len((await self.list()).items)

    def leave(self) -> None:
        return


async def _create(http: aiohttp.ClientSession, url: str, key: str) -> str:
    async with http.post(f"{url}/v1/sandboxes", json={"image": "x"}, headers={"Idempotency-Key": key}) as answer:
        assert answer.status == 201
        return (await answer.json())["id"]


async def _give_up(http: aiohttp.ClientSession, url: str, key: str) -> None:
    async with http.delete(f"{url}/v1/creates/{key}") as answer:
        assert answer.status == 204


@pytest.fixture
def shared(tmp_path: Path) -> SharedDaemons:
    backend = SharedDaemons(tmp_path)
    assert isinstance(backend, Shared)
    return backend


async def test_what_another_replica_makes_of_a_create_that_was_given_up_is_ended(shared: SharedDaemons) -> None:
    with threaded(shared) as one, threaded(shared) as two:
        async with aiohttp.ClientSession() as http:
            given_up = asyncio.create_task(_create(http, one, "given-up"))
            assert await asyncio.to_thread(shared.waiting.wait, 30)
            await _give_up(http, two, "given-up")  # nothing is there yet that could be ended
            await _give_up(http, two, "given-up")  # asked for again: one look after another all the same
            assert shared.deleted == []
            shared.turn.set()
            kept = await _create(http, one, "kept")
            unwanted = await given_up

            async def is_alone() -> bool:
                return [info.id for info in (await shared.list()).items] == [kept]

            await until(is_alone)
        assert set(shared.deleted) == {unwanted}
        (info,) = (await shared.list()).items
        assert KEY_LABEL in info.labels
        await shared.delete(kept)
