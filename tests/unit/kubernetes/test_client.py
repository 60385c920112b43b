"""What the API server's answers mean, and what a settings file may hold."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchard.core.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    OrchardError,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from orchard.sandbox.kubernetes import KubernetesSettings, NodeSize, load_settings
from orchard.sandbox.kubernetes.client import Cluster, Expired, Forbidden, failure
from orchard.sandbox.kubernetes.credentials import find_access


def answer(reason: str, **details: object) -> bytes:
    return json.dumps({"kind": "Status", "message": "its words", "reason": reason, "details": details}).encode()


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (401, "Unauthorized", Unauthorized), (403, "Forbidden", Forbidden), (404, "NotFound", NotFound),
        (409, "AlreadyExists", Conflict), (422, "Invalid", InvalidArgument), (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable), (429, "TooManyRequests", RateLimited),
    ],
)  # fmt: skip
def test_an_error_is_typed_and_keeps_the_servers_reason_and_words(
    status: int, reason: str, kind: type[OrchardError]
) -> None:
    error = failure(status, answer(reason), "")
    assert type(error) is kind
    assert isinstance(error, OrchardError)
    assert error.reason == reason
    assert "its words" in error.message


def test_a_version_that_is_no_longer_kept_is_told_apart_and_typed() -> None:
    error = failure(410, answer("Expired"), "")
    assert isinstance(error, Expired)
    assert isinstance(error, Unavailable)  # of a list: it may be asked for anew
    assert error.code == Unavailable.code


@pytest.mark.parametrize(
    ("body", "after", "seconds"),
    [(answer("x", retryAfterSeconds=7), "3", 7.0), (answer("x"), "3", 3.0), (b"no JSON", "", 1.0)],
)
def test_a_server_that_asks_us_to_wait_says_for_how_long(body: bytes, after: str, seconds: float) -> None:
    error = failure(429, body, after)
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_an_answer_that_is_no_json_is_told_as_it_is() -> None:
    assert "<html>oops" in str(failure(502, b"<html>oops", ""))


def test_settings_come_from_a_file_with_the_same_names(tmp_path: Path) -> None:
    path = tmp_path / "kubernetes.toml"
    path.write_text(
        'namespace = "boxes"\ndaemon_image = "x"\nprofile = "restricted"\npull_secrets = ["a"]\n'
        '[largest_node]\ncpu = 4\nmemory = 1024\n[[tolerations]]\nkey = "spot"\n'
    )
    found = load_settings(path)
    assert (found.namespace, found.profile, list(found.pull_secrets)) == ("boxes", "restricted", ["a"])
    assert (found.largest_node, found.tolerations[0]) == (NodeSize(4.0, 1024), {"key": "spot"})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("profile = 'odd'", "profile"), ("nothing = 1", "nothing"), ("creates = 'x'", "creates"),
        ("= =", "kubernetes"), ("creates = 0", "creates"), ("overcommit = 0", "overcommit"),
        ("overcommit = inf", "overcommit"), ("pull_timeout = nan", "pull_timeout"),
        ("pull_timeout = -1", "pull_timeout"), ("spool_bytes = 0", "spool_bytes"),
        ("node_lost_after = -1", "node_lost_after"), ("run_as = -1", "run_as"), ("commit_bytes = 0", "commit_bytes"),
        ("[largest_node]\ncpu = inf\nmemory = 1", "largest_node.cpu"), ("\udcff", "kubernetes"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "kubernetes.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidArgument) as caught:
        load_settings(path)
    assert named in (caught.value.field or "") + str(caught.value)


def test_without_a_file_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHARD_KUBERNETES", raising=False)
    assert load_settings() == KubernetesSettings()


async def connected(folder: Path, server: str) -> Cluster:
    path = folder / "config"
    named = {"name": "x", "cluster": {"server": server}, "user": {}, "context": {"cluster": "x", "user": "x"}}
    lists = {kind: [named] for kind in ("clusters", "users", "contexts")}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **lists}))
    settings = KubernetesSettings(kubeconfig=path)
    return Cluster(settings, await find_access(settings), window=0.01)


@asynccontextmanager
async def answering(folder: Path, *answers: tuple[str, bytes]) -> AsyncIterator[Cluster]:
    """A cluster whose API server gives these answers, one after the other, and the last one for ever."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status, body = left.pop(0) if len(left) > 1 else left[0]
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        cluster = await connected(folder, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            yield cluster
        finally:
            await cluster.close()


async def test_a_list_that_the_server_has_forgotten_ends_typed_and_at_once(tmp_path: Path) -> None:
    page = json.dumps({"metadata": {"continue": "token"}, "items": [1]}).encode()
    async with answering(tmp_path, ("200 OK", page), ("410 Gone", answer("Expired"))) as cluster:
        pages = aiter(cluster.pages("/api/v1/pods"))
        assert (await anext(pages))["items"] == [1]
        with pytest.raises(Unavailable) as caught:
            await anext(pages)
        assert (caught.value.reason, cluster.calls) == ("Expired", 2)


@pytest.mark.parametrize("body", [b"<html>welcome", b'["a list"]', b'{"type": "ADDED", "obj'])
async def test_a_server_that_is_none_of_kubernetes_is_told_as_such(tmp_path: Path, body: bytes) -> None:
    async with answering(tmp_path, ("200 OK", body)) as cluster:
        with pytest.raises(Unavailable, match="not from a Kubernetes API server"):
            await cluster.get("/version")
        with pytest.raises(Unavailable, match="not from a Kubernetes API server"):
            async with cluster.watch("/api/v1/pods", "1") as events:
                await anext(events)


async def test_an_address_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    cluster = await connected(tmp_path, "nonsense")
    try:
        with pytest.raises(InvalidArgument) as caught:
            await cluster.get("/version")
        assert (caught.value.field, "nonsense" in caught.value.message) == ("kubeconfig", True)
    finally:
        await cluster.close()
