"""The control plane over the real local backend: keys, tenants, quotas, idempotency, errors."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend
from tests.support.service import Served
from tests.support.waiting import until

from orchard.core.errors import (
    CreateFailed,
    InternalError,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    SandboxGone,
    Unauthorized,
)
from orchard.core.ids import new_id
from orchard.sandbox import Orchard
from orchard.sandbox.conformance.faulty import NONE, Fault, Faulty
from orchard.sandbox.remote import RemoteBackend
from orchard.sandbox.transport import RETRY_WINDOW
from orchard.sandbox.types import Page, SandboxInfo, SandboxSpec, State
from orchard.service.control import MOST_WAIT
from orchard.service.keys import KeyRing


async def test_a_sandbox_lives_and_ends_through_the_service(orchard: Orchard, busybox: str) -> None:
    box = await orchard.create(busybox, labels={"task": "t1"}, ttl=120, env={"A": "b c"})
    try:
        assert box.info.state is State.READY
        assert box.info.labels == {"task": "t1"}
        assert (await box.run("echo $A")).stdout == b"b c\n"
        assert [found.id for found in await orchard.list({"task": "t1"})] == [box.id]
        assert await orchard.list({"task": "other"}) == []
        await box.extend(600)
        assert 590 < (await box.lease())["ttl_s"] <= 600
    finally:
        await box.delete()
        await box.delete()
    info = await orchard.get(box.id)
    assert (info.state, info.reason) == (State.GONE, "deleted")
    with pytest.raises(SandboxGone) as caught:
        await (await _attach_gone(orchard, box.id)).endpoint(box.id)
    assert caught.value.reason == "deleted"


async def _attach_gone(orchard: Orchard, _: str) -> RemoteBackend:
    backend = orchard.backend
    assert isinstance(backend, RemoteBackend)
    return backend


async def test_a_command_on_a_gone_sandbox_fails_typed_and_soon(orchard: Orchard, busybox: str) -> None:
    box = await orchard.create(busybox, ttl=120)
    assert (await box.run("true")).ok
    await orchard.delete(box.id)
    start = time.monotonic()
    with pytest.raises(SandboxGone) as caught:
        await box.run("true")
    assert caught.value.reason == "deleted"
    assert time.monotonic() - start < RETRY_WINDOW, "it was tried again"


async def test_the_same_key_is_one_sandbox_and_another_body_a_conflict(
    http: aiohttp.ClientSession, busybox: str
) -> None:
    headers = {"Idempotency-Key": new_id("k")}
    bodies = [{"image": busybox, "ttl": 60}] * 5

    async def create(body: dict[str, object]) -> tuple[int, str]:
        async with http.post("/v1/sandboxes", json=body, headers=headers) as answer:
            return answer.status, (await answer.json()).get("id")

    made = set(await asyncio.gather(*(create(body) for body in bodies)))
    assert len(made) == 1
    assert (await create({"image": busybox, "ttl": 61}))[0] == 409
    [(status, sandbox_id)] = made
    assert status == 201
    for _ in range(2):
        async with http.delete(f"/v1/sandboxes/{sandbox_id}", headers={"Idempotency-Key": "d1"}) as answer:
            assert answer.status == 204
    async with http.post("/v1/sandboxes", json=bodies[0], headers=headers) as answer:
        again = await answer.json()
    assert (again["id"], again["state"], again["reason"]) == (sandbox_id, "gone", "deleted")  # as it is by now


async def test_extend_under_one_key_has_one_answer(http: aiohttp.ClientSession, orchard: Orchard, busybox: str) -> None:
    async with orchard.sandbox(busybox) as box:
        path, headers = f"/v1/sandboxes/{box.id}/extend", {"Idempotency-Key": "e1"}
        async with http.post(path, json={"ttl": 500}, headers=headers) as answer:
            first = await answer.json()
        async with http.post(path, json={"ttl": 500}, headers=headers) as answer:
            assert await answer.json() == first
        async with http.post(path, json={"ttl": 400}, headers=headers) as answer:
            assert answer.status == 409
        async with http.post(path, json={"ttl": 1e9}) as answer:
            assert (answer.status, (await answer.json())["code"]) in (
                (400, "invalid_argument"),
                (422, "invalid_argument"),
            )


async def test_waiting_for_a_state_is_done_by_the_service(
    http: aiohttp.ClientSession, orchard: Orchard, busybox: str
) -> None:
    box = await orchard.create(busybox)
    await box.extend(0.5)
    wait, start = str(MOST_WAIT), time.monotonic()
    async with http.get(f"/v1/sandboxes/{box.id}", params={"wait": wait, "state": "gone"}) as answer:
        facts = await answer.json()
    assert (facts["state"], facts["reason"]) == ("gone", "ttl")
    async with http.get(f"/v1/sandboxes/{box.id}", params={"wait": wait}) as answer:
        assert (await answer.json())["state"] == "gone"
    assert time.monotonic() - start < MOST_WAIT, "it was waited for what had come"


async def test_listing_goes_in_pages(http: aiohttp.ClientSession, orchard: Orchard, busybox: str) -> None:
    boxes = [await orchard.create(busybox, labels={"page": "x"}, ttl=60) for _ in range(3)]
    seen: list[str] = []
    where = {"label": "page=x", "limit": "2"}
    async with http.get("/v1/sandboxes", params=where) as answer:
        page = await answer.json()
    while True:
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        async with http.get("/v1/sandboxes", params={**where, "cursor": page["next"]}) as answer:
            page = await answer.json()
    assert seen == [box.id for box in boxes]
    await asyncio.gather(*(box.delete() for box in boxes))


async def test_a_method_that_a_route_lacks_is_405_with_those_it_has(http: aiohttp.ClientSession) -> None:
    for method, path, allowed in [
        ("PATCH", "/v1/sandboxes", "GET, POST"),
        ("PUT", "/v1/sandboxes/sb-1", "DELETE, GET"),
    ]:
        async with http.request(method, path) as answer:
            body = await answer.json()
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
        assert (body["status"], body["code"]) == (405, "invalid_argument")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"image": "x", "ttl": "5"}, "ttl"), ({"image": "x", "ttl": 0}, "ttl"), ({"image": "x", "cpu": -1}, "cpu"),
        ({"image": "x", "nope": 1}, "nope"), ({"image": ""}, "image"), ({}, "image"), ([], "body"),
        ({"image": "x", "memory": "9" * 400}, "memory"), ({"image": "x", "labels": {"a b": "c"}}, "labels"),
        ({"image": "x", "labels": {"orchard/tenant": "bob"}}, "labels"),
        ({"image": "x", "network": "maybe"}, "network"),
    ],
)  # fmt: skip
async def test_a_wrong_body_is_refused_with_its_field(http: aiohttp.ClientSession, body: object, field: str) -> None:
    async with http.post("/v1/sandboxes", json=body) as answer:
        facts = await answer.json()
    assert (answer.status, facts["code"], facts["field"]) == (400, "invalid_argument", field)
    assert answer.content_type == "application/problem+json"


async def test_no_key_a_wrong_key_and_a_key_in_the_url_are_refused(service: Served) -> None:
    async with aiohttp.ClientSession(service.url) as http:
        for headers, where in (({}, {}), ({"Authorization": "Bearer x"}, {}), ({}, {"key": service.key})):
            for path in ("/v1/sandboxes", "/v1/sandboxes/sb-x/health", "/v1/metrics", "/v1/nope"):
                async with http.get(path, headers=headers, params=where) as answer:
                    assert answer.status == 401, path
                    assert (await answer.json())["code"] == "unauthorized"
        async with http.get("/health") as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect("/v1/sandboxes/sb-x/ports/80")
        assert caught.value.status == 401
    async with Orchard(service.url, api_key="wrong") as stranger:
        with pytest.raises(Unauthorized):
            await stranger.list()
    async with Orchard(service.url, api_key=f"{service.key}\n") as known:  # as files of secrets end
        await known.list()
    with pytest.raises(InvalidArgument, match="API key"):
        RemoteBackend(service.url, api_key="a\nb")


async def test_another_tenants_sandbox_does_not_exist(service: Served, orchard: Orchard, busybox: str) -> None:
    other_key = KeyRing(service.keys).add(new_id("t")[:20])
    await asyncio.sleep(1.1)  # a running service reads the file again after a second
    box = await orchard.create(busybox, ttl=60)
    try:
        async with Orchard(service.url, api_key=other_key) as other:
            assert await other.list() == []
            for call in (other.get, other.delete, other.attach):
                with pytest.raises(NotFound):
                    await call(box.id)
        headers = {"Authorization": f"Bearer {other_key}"}
        async with aiohttp.ClientSession(service.url, headers=headers) as http:
            for path in ("", "/health", "/files?path=/etc", "/proxy/80/", "/processes"):
                told = []
                for name in (box.id, "sb-" + "0" * 20):  # another's, and none at all: not to be told apart
                    async with http.get(f"/v1/sandboxes/{name}{path}") as answer:
                        assert answer.status == 404, path
                        facts = await answer.json()
                        told.append({**facts, "request_id": "", "detail": facts["detail"].replace(name, "ID")})
                assert told[0] == told[1]
        assert (await box.run("true")).ok
    finally:
        await box.delete()


@pytest.mark.parametrize("wrong", ["..%2Fx", "..", "A", "sb_1", "%00", "x" * 70])
async def test_ids_that_are_none_are_refused(service: Served, wrong: str) -> None:
    """Raw, as a client that does not tidy its paths would send it."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    for rest in ("", "/files?path=/etc/passwd", "/proxy/80/"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /v1/sandboxes/{wrong}{rest} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {service.key}\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
        assert int(answer.split()[1]) in (400, 404), answer
        assert b"application/problem+json" in answer


async def test_images_of_the_machine_are_refused_unless_allowed(image_home: Path, daemon: DaemonBackend) -> None:
    with threaded(daemon) as url:
        backend = RemoteBackend(url)
        for image in ("host", "dir:/etc", "oci:/x", "oci-archive:/x", "docker-archive:/x", "docker-daemon:x"):
            with pytest.raises(InvalidArgument) as caught:
                await backend.create(SandboxSpec(image), new_id("k"))
            assert caught.value.field == "image"
            with pytest.raises(InvalidArgument):
                await backend.resolve_image(image)
        await backend.close()
    assert daemon.created == 0


async def test_a_quota_counts_the_living_and_those_being_made(service: Served, busybox: str) -> None:
    key = KeyRing(service.keys).add(new_id("q")[:20], quota=2)
    await asyncio.sleep(1.1)
    async with Orchard(service.url, api_key=key) as orchard:
        made = await asyncio.gather(*(orchard.create(busybox, ttl=60) for _ in range(4)), return_exceptions=True)
        boxes = [box for box in made if not isinstance(box, BaseException)]
        assert len(boxes) == 2
        assert all(isinstance(error, QuotaExceeded) for error in made if isinstance(error, BaseException))
        await boxes[0].run(["kill", "-9", "-1"])
        await boxes[0].delete()
        boxes[0] = await orchard.create(busybox, ttl=60)
        await asyncio.gather(*(box.delete() for box in boxes))


async def test_a_rate_is_enforced_and_a_client_waits_it_out(service: Served) -> None:
    key = KeyRing(service.keys).add(new_id("r")[:20], rate=1)
    await asyncio.sleep(1.1)
    async with aiohttp.ClientSession(service.url, headers={"Authorization": f"Bearer {key}"}) as http:

        async def get() -> tuple[int, str, str]:
            async with http.get("/v1/sandboxes") as answer:
                return answer.status, (await answer.json()).get("code", ""), answer.headers.get("Retry-After", "")

        answers = await asyncio.gather(*(get() for _ in range(20)))
    assert set(answers) == {(200, "", ""), (429, "rate_limited", "1")}
    async with Orchard(service.url, api_key=key) as orchard:
        assert await asyncio.gather(*(orchard.list() for _ in range(3))) == [[], [], []]


class SlowBackend(DaemonBackend):
    """Creates wait and then fail, as those of a slow registry without the image would."""

    waiting, held = 0, True

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self.waiting += 1
        while self.held:  # noqa: ASYNC110 - it is let go from another thread
            await asyncio.sleep(0.05)
        raise CreateFailed("no such image", reason="image_not_found")


async def test_two_hundred_slow_creates_do_not_hold_up_health(tmp_path: Path) -> None:
    slow = SlowBackend(tmp_path)
    with threaded(slow) as url:
        backend = RemoteBackend(url)
        creates = [asyncio.create_task(backend.create(SandboxSpec("x"), new_id("k"))) for _ in range(200)]
        await until(lambda: slow.waiting == 200)
        async with aiohttp.ClientSession(url) as http, asyncio.timeout(60):
            for _ in range(20):  # while not one of them is over
                async with http.get("/health") as answer:
                    assert answer.status == 200
        slow.held = False
        results = await asyncio.gather(*creates, return_exceptions=True)
        assert {type(result) for result in results} == {CreateFailed}
        await backend.close()


async def test_a_create_that_is_given_up_leaves_nothing(
    service: Served, orchard: Orchard, busybox: str, http: aiohttp.ClientSession
) -> None:
    label = {"given": "up"}
    create = asyncio.create_task(orchard.create(busybox, labels=label, ttl=60))
    await asyncio.sleep(0.01)
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create

    async def none_is_left() -> bool:
        return not await orchard.list(label)

    await until(none_is_left)
    key = new_id("k")
    async with http.post("/v1/sandboxes", json={"image": busybox, "labels": label}, headers={"Idempotency-Key": key}):
        pass
    async with http.delete(f"/v1/creates/{key}") as answer:
        assert answer.status == 204
    assert await orchard.list(label) == []


async def test_nothing_secret_is_logged_and_request_ids_are(
    service: Served, http: aiohttp.ClientSession, orchard: Orchard, busybox: str
) -> None:
    async with orchard.sandbox(busybox, env={"API_KEY": "s3cret-env"}) as box:
        await box.run("true", env={"B": "s3cret-command"}, stdin=b"s3cret-stdin")
        await box.files.write("/tmp/s3cret-name", b"s3cret-content")
        async with http.get(f"/v1/sandboxes/{box.id}/health", headers={"Orchard-Request-Id": "mine-1"}) as answer:
            assert answer.headers["Orchard-Request-Id"] == "mine-1"
        async with http.get("/v1/sandboxes", headers={"Orchard-Request-Id": "a b"}) as answer:
            assert re.fullmatch(r"req-[0-9a-z]{20}", answer.headers["Orchard-Request-Id"])
    log = service.log.read_text()
    assert "request=mine-1" in log
    assert "s3cret" not in log
    assert service.key not in log
    assert "Bearer" not in log


async def test_the_document_and_the_metrics_say_what_is_served(http: aiohttp.ClientSession, orchard: Orchard) -> None:
    async with http.get("/openapi.json") as answer:
        document = await answer.json()
    assert document["openapi"].startswith("3.")
    for path in ("/docs", "/redoc"):  # FastAPI's pages load their scripts from elsewhere
        async with http.get(path) as answer:
            assert (answer.status, answer.content_type) == (404, "application/problem+json")
    for path in (
        "/v1/sandboxes",
        "/v1/sandboxes/{sandbox_id}/processes",
        "/v1/sandboxes/{sandbox_id}/proxy/{port}/{path}",
    ):
        assert path in document["paths"]
    mutating = [
        (path, method) for path, operations in document["paths"].items() for method, operation in operations.items()
        if method in ("post", "delete") and "in a sandbox" not in operation["tags"]
        and not any(parameter["name"] in ("Idempotency-Key", "key") for parameter in operation.get("parameters", ()))
    ]  # fmt: skip
    assert mutating == []
    assert "snapshot" not in json.dumps(document["paths"])
    async with http.get("/v1/metrics") as answer:
        text = await answer.text()
    assert 'orchard_requests_total{method="GET",room="' in text
    async with http.get("/v1/stats") as answer:
        assert set(await answer.json()) == {"sandboxes", "started_at"}
    assert (await orchard.capabilities()).exceptions["network=open"]


async def test_without_keys_only_loopback_names_are_served(daemon: DaemonBackend) -> None:
    with threaded(daemon) as url:
        async with aiohttp.ClientSession(url) as http:
            async with http.get("/v1/sandboxes") as answer:
                assert answer.status == 200
            for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
                async with http.get("/v1/sandboxes", headers=headers) as answer:
                    assert answer.status == 401


class BrokenBackend(DaemonBackend):
    """Has a fault of its own."""

    async def list(self, *_: object, **__: object) -> Page:
        raise RuntimeError("s3cret of the machine")


async def test_a_fault_of_ours_is_a_problem_with_a_request_id_that_the_log_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with threaded(BrokenBackend(tmp_path)) as url:
        async with aiohttp.ClientSession(url) as http, http.get("/v1/sandboxes") as answer:
            text = await answer.text()
        facts = json.loads(text)
    assert (answer.status, facts["code"]) == (500, "internal")
    assert "s3cret" not in text
    assert answer.headers["Orchard-Request-Id"] == facts["request_id"]
    [fault] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert facts["request_id"] in fault.getMessage()
    assert fault.exc_info


class RefusedBackend(DaemonBackend):
    """The cluster behind it refuses the service's own account."""

    async def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Unauthorized("the API server refuses GET pods", hint="see what the service account may do")

    list: Any = _refuse
    get: Any = _refuse
    endpoint: Any = _refuse


async def test_what_refuses_the_service_is_no_fault_of_the_callers_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with threaded(RefusedBackend(tmp_path)) as url:
        async with Orchard(url) as orchard:
            with pytest.raises(InternalError) as caught:
                await orchard.list()
    assert caught.value.message == "the service itself is not let in: the API server refuses GET pods"
    assert caught.value.hint == "see what the service account may do"
    assert [record.levelname for record in caplog.records if "refuses GET pods" in record.getMessage()] == ["ERROR"]


@pytest.mark.parametrize("room", ["processes", "files?path=/x", "proxy/80/"])
async def test_nor_is_it_on_the_data_path(tmp_path: Path, room: str) -> None:
    with threaded(RefusedBackend(tmp_path)) as url:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/sandboxes/sb-x/{room}") as answer:
            facts = await answer.json()
    assert (answer.status, facts["code"], facts["hint"]) == (500, "internal", "see what the service account may do")


async def test_probes_of_health_are_no_news_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "orchard.service")
    with threaded(BrokenBackend(tmp_path)) as url:
        async with aiohttp.ClientSession(url) as http:
            for path in ("/health", "/v1/health", "/v1/nowhere"):
                await (await http.get(path)).read()
    told = {record.getMessage().split()[1]: record.levelname for record in caplog.records if "request=" in record.msg}
    assert told == {"/health": "DEBUG", "/v1/health": "DEBUG", "/v1/nowhere": "INFO"}


@pytest.mark.parametrize(
    "fault", [Fault(bad_gateway="after"), Fault(cut_answer=1), Fault(cut_request=100), Fault(refuse=True)]
)
async def test_a_client_gets_through_a_proxy_that_fails_and_makes_one_sandbox(
    service: Served, busybox: str, fault: Fault
) -> None:
    proxy = Faulty(service.url, lambda number: fault if number % 2 == 0 else NONE)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        backend = RemoteBackend(f"http://127.0.0.1:{port}", api_key=service.key)
        spec = SandboxSpec(busybox, ttl=60, labels={"fault": new_id("f")})
        info = await backend.create(spec, new_id("k"))
        assert [found.id for found in (await backend.list(spec.labels)).items] == [info.id]
        await backend.delete(info.id)
        assert (await backend.list(spec.labels)).items == []
        await backend.close()
        assert proxy.injected, "the first connection meets the fault"
        await proxy.stop()
