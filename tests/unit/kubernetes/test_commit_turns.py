"""How many sandboxes are committed at once."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from tests.support.waiting import until

from orchard.core.errors import SandboxGone, Unauthorized, Unavailable
from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.sandbox.kubernetes.commit import Committer
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.registry import Registry
from orchard.sandbox.transport import Call
from orchard.sandbox.types import Endpoint

NOBODY: Any = None  # no cluster is come to
KEY = ServiceKey(b"k" * 32)


async def test_commits_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path))
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = KubernetesSettings(commit_repository=f"{silent}/made", insecure_registries=[silent], commits=3)
    looked = list[str]()

    async def find(sandbox_id: str) -> tuple[dict[str, Any], Identity]:
        looked.append(sandbox_id)
        return {}, Identity("boxes", "name", sandbox_id, "tenant")

    key, registry = ServiceKey(b"k" * 32), Registry(settings, Images(settings, NOBODY))
    committer = Committer(settings, NOBODY, key, NOBODY, registry, NOBODY, cast("Any", find))
    asks = [asyncio.ensure_future(committer.commit(f"sb-{number}", "name")) for number in range(7)]
    await until(lambda: len(looked) == 7 and len(held) >= 3)
    await asyncio.sleep(0.5)  # in which a fourth would ask the registry, too
    assert len(held) == 3
    await committer.close()
    await asyncio.gather(*asks, return_exceptions=True)
    for writer in held:
        writer.close()
    server.close()


@pytest.mark.parametrize("made", [None, "sha256:made"])
async def test_who_is_asked_again_while_another_replica_commits_finds_what_that_one_made(
    made: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()

    class Repository:
        async def digest(self, reference: str) -> str | None:
            return made if ended else None

    class Rest:
        async def bury(self, *_: object) -> None:
            return

        async def delete(self, sandbox_id: str) -> None:
            ended.append(sandbox_id)

    async def find(sandbox_id: str) -> tuple[dict[str, Any], Identity]:
        return {"metadata": {}}, Identity("boxes", "name", sandbox_id, "tenant")

    async def gone(*_: object) -> str:
        ended.append("by another")
        raise SandboxGone("it has ended", reason="deleted")

    monkeypatch.setattr(Committer, "_image", gone)
    settings = KubernetesSettings(commit_repository="127.0.0.1:1/made")
    rest = cast("Any", Rest())
    committer = Committer(
        settings, NOBODY, ServiceKey(b"k" * 32), rest, cast("Any", Repository()), rest, cast("Any", find)
    )
    if made is None:
        with pytest.raises(SandboxGone):
            await committer.commit("sb-1", "name")
    else:
        assert await committer.commit("sb-1", "name") == made


class Daemon:
    """A sandbox's, and the backend that knows where it is; it lets in whoever has one of its ``tokens``."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id, self.base = sandbox_id, ""
        self.sha256s = [KEY.token_sha256(sandbox_id)]
        self.gone = False

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        if self.gone:
            raise SandboxGone("it has ended", reason="deleted")
        headers = {"Orchard-Sandbox": sandbox_id, "Authorization": f"Bearer {KEY.token(sandbox_id)}"}
        return Endpoint(self.base, "/v1", headers, sandbox_id)

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        headers = {"Orchard-Sandbox": self.sandbox_id}
        if hashlib.sha256(token.encode()).hexdigest() not in self.sha256s:
            return web.json_response({"code": "unauthorized", "detail": "no valid token"}, status=401, headers=headers)
        if request.path == "/v1/tokens":
            self.sha256s = [(await request.json())["replace"]]
        return web.json_response({"processes": []}, headers=headers)


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    made, app = Daemon("sb-1"), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def replica(daemon: Daemon) -> Committer:
    settings = KubernetesSettings(commit_repository="127.0.0.1:1/made")
    return Committer(settings, NOBODY, KEY, NOBODY, NOBODY, cast("Any", daemon), NOBODY)


LEASE = Call("GET", "/lease")


async def test_a_sandbox_that_another_replica_has_ended_is_gone_at_once(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    async def go_on() -> None:
        async with replica(daemon)._alone("sb-1") as transport:
            await transport.request(LEASE)
            daemon.gone, daemon.sandbox_id = True, "another, at the same address"
            await transport.request(LEASE)

    async with asyncio.timeout(10):  # not the minute for which a silent one is asked again
        with pytest.raises(SandboxGone):
            await go_on()
    assert not caplog.records


async def test_who_works_on_while_another_replica_gives_the_sandbox_back_is_to_ask_again(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(reached: asyncio.Event) -> None:
        async with replica(daemon)._alone("sb-1"):
            await reached.wait()
            raise Unauthorized("the registry refuses us")

    async def go_on(failing: asyncio.Future[None], reached: asyncio.Event) -> None:
        async with replica(daemon)._alone("sb-1") as transport:
            await transport.request(LEASE)
            reached.set()
            await asyncio.wait([failing])
            await transport.request(LEASE)

    reached = asyncio.Event()
    failing = asyncio.ensure_future(fail(reached))
    await until(lambda: daemon.sha256s != [KEY.token_sha256("sb-1")])
    with pytest.raises(Unavailable):
        await go_on(failing, reached)
    with pytest.raises(Unauthorized, match="the registry"):  # which is the client's own to mend
        await failing
    assert daemon.sha256s == [KEY.token_sha256("sb-1")]
    assert not caplog.records
