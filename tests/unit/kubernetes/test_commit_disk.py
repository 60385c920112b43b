"""What commits take of the disk: each step ends where its share does, whatever the sandbox sends."""

import gzip
import io
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from orchard.core.errors import Unsupported
from orchard.sandbox.kubernetes import manifests
from orchard.sandbox.kubernetes.changes import Changes
from orchard.sandbox.kubernetes.commit import _fetch  # pyright: ignore[reportPrivateUsage]
from orchard.sandbox.kubernetes.layers import complete, compress
from orchard.sandbox.kubernetes.manifests import ImageManifests, compare, take
from orchard.sandbox.kubernetes.registry import Base
from orchard.sandbox.transport import Transport
from orchard.sandbox.types import Endpoint

END = json.dumps({"end": True}).encode() + b"\n"
LIMIT = 1 << 20


class Box:
    """A sandbox that sends a manifest and a tree of so many bytes; as a backend, all its sandboxes are this one."""

    def __init__(self) -> None:
        self.base, self.size, self.made = "", 0, 0

    async def endpoint(self, _: str) -> Endpoint:
        return Endpoint(self.base, "/v1")

    async def create(self, *_: Any) -> Any:
        self.made += 1
        return SimpleNamespace(id="sb-1")

    async def delete(self, _: str, *, wait: bool) -> None: ...

    async def files(self, _: web.Request) -> web.Response:
        return web.Response(body=b"1 0 0:1 / / rw - overlay overlay rw\n")

    async def manifest(self, _: web.Request) -> web.Response:
        return web.Response(body=random.Random(self.size).randbytes(self.size) + b"\n" + END)

    async def tree(self, _: web.Request) -> web.Response:
        return web.Response(body=bytes(self.size))


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Box]:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(manifests, "_LONGEST", LIMIT)
    made, app = Box(), web.Application()
    app.add_routes([
        web.get("/v1/files", made.files), web.get("/v1/manifest", made.manifest),
        web.post("/v1/tree/pick", made.tree),
    ])  # fmt: skip
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@asynccontextmanager
async def way_to(box: Box) -> AsyncIterator[Transport]:
    transport = Transport(await box.endpoint(""))
    try:
        yield transport
    finally:
        await transport.close()


async def test_a_root_of_more_files_than_are_listed_is_refused(box: Box, tmp_path: Path) -> None:
    async with way_to(box) as transport:
        box.size = LIMIT // 2
        await take(transport, tmp_path / "now.gz")
        box.size = 8 * LIMIT
        with pytest.raises(Unsupported) as caught:
            await take(transport, tmp_path / "now.gz")
    assert caught.value.reason == "too_large"
    assert (tmp_path / "now.gz").stat().st_size < 2 * LIMIT


async def test_headers_of_files_count_as_the_layer_does(box: Box) -> None:
    """A thousand empty files hold nothing, and take a megabyte."""
    changes = Changes({b"%d" % number: {"type": "file", "size": 0} for number in range(1000)})
    changes.check(LIMIT)
    archive = io.BytesIO()
    async with way_to(box) as transport:
        box.size = LIMIT - 512
        await _fetch(transport, changes, archive, LIMIT)
        box.size = LIMIT + 512
        with pytest.raises(Unsupported) as caught:
            await _fetch(transport, changes, io.BytesIO(), LIMIT)
    assert caught.value.reason == "too_large"
    assert len(archive.getvalue()) < LIMIT


def test_what_is_deleted_counts_as_the_layer_does() -> None:
    archive = io.BytesIO()
    with pytest.raises(Unsupported) as caught:
        complete(archive, Changes({}, [b"%0200d" % number for number in range(2000)]), LIMIT)
    assert caught.value.reason == "too_large"
    assert len(archive.getvalue()) < LIMIT + (64 << 10)


def test_what_cannot_be_packed_grows_by_next_to_nothing(tmp_path: Path) -> None:
    layer = compress(io.BytesIO(random.Random(1).randbytes(4 << 20)), tmp_path)
    assert layer.size < (4 << 20) * 1.001


def images() -> Iterator[Base]:
    for number in range(1000):
        yield Base(f"registry.example/x@sha256:{number:064}", {}, {})


async def test_of_images_the_lists_last_used_are_kept_and_one_that_is_read_stays_whole(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, every = ImageManifests(cast("Any", box), "daemon"), images()
    monkeypatch.setattr(manifests, "_KEPT", LIMIT)
    box.size = LIMIT // 4 - (8 << 10)
    first = next(every)
    with await kept.of(first, None, tmp_path) as held:
        for _ in range(8):
            with await kept.of(next(every), None, tmp_path) as opened:
                assert gzip.GzipFile(fileobj=opened).read().endswith(END)
        assert box.made == 9
        assert gzip.GzipFile(fileobj=held).read().endswith(END)
    folder = tmp_path / "cache" / "kubernetes" / "manifests"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMIT
    (await kept.of(first, None, tmp_path)).close()
    (await kept.of(first, None, tmp_path)).close()
    assert box.made == 10, "it had gone, and is there now"


async def test_of_a_root_and_its_image_the_same_lists_are_no_change(box: Box, tmp_path: Path) -> None:
    async with way_to(box) as transport:
        await take(transport, tmp_path / "now.gz")
    with await ImageManifests(cast("Any", box), "daemon").of(next(images()), None, tmp_path) as below:
        assert compare(below, tmp_path / "now.gz") == Changes()
