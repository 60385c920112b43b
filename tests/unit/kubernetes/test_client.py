"""What the API server's answers mean, and what a settings file may hold."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.waiting import until

from orchard.core.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    OrchardError,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from orchard.core.tasks import cancel
from orchard.sandbox.kubernetes import KubernetesSettings, NodeSize, load_settings
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster, Expired, Forbidden, failure
from orchard.sandbox.kubernetes.complaints import Complaints
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


def test_whole_numbers_are_whole_however_they_are_written(tmp_path: Path) -> None:
    """Helm reads every number of a values file as a float, and writes it as one."""
    path, numbers = tmp_path / "kubernetes.toml", ("run_as", "node_lost_after", "creates", "commits")
    sizes = ("commit_bytes", "spool_bytes")
    path.write_text(
        "".join(f"{name} = 7.0\n" for name in numbers)
        + "".join(f"{name} = 2.147483648e+09\n" for name in sizes)
        + "[largest_node]\ncpu = 4.0\nmemory = 1024.0\n"
        + '[[tolerations]]\nkey = "300"\ntolerationSeconds = 300.0\n'
    )
    found = load_settings(path)
    values = [*(getattr(found, name) for name in (*numbers, *sizes)), found.largest_node and found.largest_node.memory]
    assert json.dumps(values) == json.dumps([7] * 4 + [1 << 31] * 2 + [1024])
    assert json.dumps(list(found.tolerations)) == '[{"key": "300", "tolerationSeconds": 300}]'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("profile = 'odd'", "profile"), ("nothing = 1", "nothing"), ("creates = 'x'", "creates"),
        ("= =", "kubernetes"), ("creates = 0", "creates"), ("overcommit = 0", "overcommit"),
        ("overcommit = inf", "overcommit"), ("pull_timeout = nan", "pull_timeout"),
        ("pull_timeout = -1", "pull_timeout"), ("spool_bytes = 0", "spool_bytes"),
        ("node_lost_after = -1", "node_lost_after"), ("run_as = -1", "run_as"), ("commit_bytes = 0", "commit_bytes"),
        ("commits = 0", "commits"), ("[[tolerations]]\ntolerationSeconds = 1.5", "tolerationSeconds"),
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


async def test_a_watch_that_ends_at_once_is_not_taken_up_again_at_once(tmp_path: Path) -> None:
    """As behind a proxy that closes what it does not understand; each ended watch is a request."""
    counted = dict.fromkeys(("pods", "events"), 0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"" if b"watch=1" in head else b'{"metadata": {"resourceVersion": "5"}, "items": []}'
        if not body:
            counted["pods" if b"/pods?" in head else "events"] += 1
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        cluster = await connected(tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        cache = PodCache(cluster)
        following = [asyncio.ensure_future(work) for work in (cache.run(), Complaints(cluster, cache).run())]
        try:
            await until(lambda: min(counted.values()) >= 2)  # each is taken up again
            await asyncio.sleep(1.0)
            assert max(counted.values()) < 12
        finally:
            await cancel(*following)
            await cluster.close()
