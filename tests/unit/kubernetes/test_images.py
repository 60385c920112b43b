"""What is told of an image's name, and of registries that do not answer, without a cluster."""

import asyncio
import hashlib
import json
from contextlib import AsyncExitStack
from typing import cast

import pytest

from orchard.core.errors import CreateFailed
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.settings import KubernetesSettings

DOCKER = "application/vnd.docker"
NODES = {"kubernetes.io/arch": "amd64"}  # so that no cluster is asked for them


def images(*insecure: str) -> Images:
    settings = KubernetesSettings(node_selector=NODES, insecure_registries=insecure)
    return Images(settings, cast("Cluster", None))


@pytest.mark.parametrize(
    "name",
    ["a b", "-x", "--help", "Busybox", "127.0.0.1:1/", "127.0.0.1:1/a//b", "127.0.0.1:1/a b", "127.0.0.1:1/a:-tag",
     "127.0.0.1:1/a@sha256:12", "127.0.0.1:x/a", "a\nb", "b\u00fcsy", "oci:/folder", f"{'a' * 200_000}.:"],
)  # fmt: skip
async def test_a_name_that_is_no_reference_is_told_before_anybody_is_asked(name: str) -> None:
    with pytest.raises(CreateFailed) as caught:
        await images().for_pod(name, "tenant")
    assert caught.value.reason == "image_invalid"


@pytest.mark.parametrize(
    "rest", ["a", "a/b_c/d-e.f__g:1.0_X", f"a@sha256:{'0' * 64}", f"a:tag@sha256:{'0' * 64}", "a--b:latest"]
)
async def test_the_registry_of_a_reference_is_asked(rest: str) -> None:
    with pytest.raises(CreateFailed) as caught:
        await images("127.0.0.1:1").facts(f"127.0.0.1:1/{rest}")
    assert caught.value.reason == "registry_unreachable"


class Silent:
    """A registry that takes connections, and answers none until it is let go."""

    def __init__(self) -> None:
        self.asked, self.over = asyncio.Event(), asyncio.Event()
        self.name = ""

    async def start(self, stack: AsyncExitStack) -> None:
        server = await stack.enter_async_context(await asyncio.start_server(self._hold, "127.0.0.1", 0))
        self.name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _hold(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await self.over.wait()
        writer.close()


async def test_silent_registries_of_one_tenant_do_not_hold_up_another() -> None:
    async with AsyncExitStack() as stack:
        slow = [Silent() for _ in range(8)]
        for each in slow:
            await each.start(stack)
        known = images("127.0.0.1:1", *(each.name for each in slow))
        asks = [asyncio.ensure_future(known.facts(f"{each.name}/a", "one")) for each in slow]
        asks.append(asyncio.ensure_future(known.facts("127.0.0.1:1/a", "one")))
        try:
            for each in slow[:4]:  # as many as are asked at once
                await each.asked.wait()
            other = asyncio.ensure_future(known.facts("127.0.0.1:1/a", "other"))
            await asyncio.sleep(0)
            for each in slow[:2]:
                each.over.set()
            with pytest.raises(CreateFailed):
                await other
            assert not any(ask.done() for ask in asks[2:])
        finally:
            for each in slow:
                each.over.set()
            told = await asyncio.gather(*asks, return_exceptions=True)
        assert {error.reason for error in told if isinstance(error, CreateFailed)} == {"registry_unreachable"}


@pytest.mark.parametrize(
    "manifest",
    [b"no JSON", b"[]", b'"text"', b'{"manifests": 5}', b'{"manifests": ["x"]}', b"[" * 100_000,
     b'{"manifests": [{"platform": {"os": "linux"}}]}'],
    ids=lambda text: text[:40].decode(),
)  # fmt: skip
async def test_a_registry_that_tells_nonsense_of_an_image_is_told_as_such(
    manifest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.kubernetes.images._ASK_SECONDS", 240.0)  # whatever else runs here

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(3) == b"GET":  # it tries TLS first
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % (b"application/vnd.oci.image.index.v1+json", len(manifest)) + manifest)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CreateFailed) as caught:
            await images(name).for_pod(f"{name}/a", "")
    assert caught.value.reason == "image_invalid"


class Registry:
    """A registry by plain HTTP that has one image, and answers ``status`` to who wants a token for another."""

    def __init__(self, status: str) -> None:
        self._status = status
        config = b'{"architecture": "amd64", "os": "linux", "config": {"User": "me"}}'
        own = {"mediaType": f"{DOCKER}.container.image.v1+json", "size": len(config), "digest": digest(config)}
        kind = f"{DOCKER}.distribution.manifest.v2+json"
        manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": own, "layers": []}).encode()
        self._held = {
            "manifests/1": manifest,
            f"manifests/{digest(manifest)}": manifest,
            f"blobs/{digest(config)}": config,
        }
        self._kind = f"Content-Type: {kind}"
        self.name = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(3) == b"GET":  # it tries TLS first
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            status, head, body = self._answer(request.split()[0], known="Authorization: Bearer" in request)
            lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", head]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        writer.close()

    def _answer(self, target: str, *, known: bool) -> tuple[str, str, bytes]:
        if target.startswith("/token"):
            return ("200 OK", "X: y", b'{"token": "t"}') if "good" in target else (self._status, "X: y", b"")
        if not known:
            return "401 Unauthorized", f'WWW-Authenticate: Bearer realm="http://{self.name}/token",service="x"', b""
        return "200 OK", self._kind, self._held.get(target.removeprefix("/v2/good/"), b"{}")


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize(
    ("status", "reason"),
    [("403 Forbidden", "image_auth"), ("404 Not Found", "registry_unreachable"), ("503 Busy", "registry_unreachable")],
)
async def test_a_registry_that_refuses_one_name_is_asked_for_others(
    status: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.kubernetes.images._ASK_SECONDS", 240.0)  # whatever else runs here
    registry = Registry(status)
    async with await asyncio.start_server(registry.serve, "127.0.0.1", 0) as server:
        registry.name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        known = images(registry.name)
        with pytest.raises(CreateFailed) as caught:
            await known.facts(f"{registry.name}/private:1", "one")
        assert caught.value.reason == reason
        facts = await known.facts(f"{registry.name}/good:1", "other")
    assert facts is not None
    assert facts.user == "me"


async def test_a_registry_that_does_not_answer_is_not_asked_again_for_a_while() -> None:
    known = images("127.0.0.1:1")
    for words in ("connection refused", "has just not answered"):
        with pytest.raises(CreateFailed, match=words) as caught:
            await known.facts("127.0.0.1:1/a", "one")
        assert caught.value.reason == "registry_unreachable"
