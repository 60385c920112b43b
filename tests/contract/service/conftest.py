"""A real service: as a process over the local backend, or in a thread over real sandboxds without isolation."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.support import any_load
from tests.support.daemon import SANDBOXD, DaemonBackend
from tests.support.service import Served, served

from orchard.sandbox import Orchard
from orchard.sandbox.protocol import Backend
from orchard.service.app import Service
from orchard.service.keys import KeyRing
from orchard.service.options import ServiceOptions
from orchard.service.server import Server, configure

__all__ = ["any_load"]
APPLETS = ("sh", "cat", "echo", "sleep", "head", "dd", "seq", "ls", "true", "false", "touch", "mkdir", "mkfifo", "nc",
           "wc", "printf", "kill", "sha256sum", "yes", "ps", "grep", "rm", "env", "id")  # fmt: skip


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root folder with a static busybox, as an image."""
    root = tmp_path_factory.mktemp("busybox")
    for name in ("bin", "tmp", "work", "etc"):
        (root / name).mkdir()
    found = shutil.which("busybox")
    assert found, "busybox-static is missing: apt-get install busybox-static"
    shutil.copy(found, root / "bin/busybox")
    for name in APPLETS:
        (root / "bin" / name).symlink_to("busybox")
    return f"dir:{root}"


@pytest.fixture(scope="session")
def service(image_home: Path) -> Iterator[Served]:
    """One ``orchard serve`` for the session's tests that do not hurt it."""
    with served(image_home, "--allow-host-images") as running:
        yield running


@pytest.fixture
async def orchard(service: Served) -> AsyncIterator[Orchard]:
    async with Orchard(service.url, api_key=service.key) as door:
        yield door


@pytest.fixture
async def http(service: Served) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url, headers=service.auth, auto_decompress=False) as session:
        yield session


@contextmanager
def threaded(backend: Backend, keys: Path | None = None) -> Iterator[str]:
    """Serve ``backend`` from a thread of this process; yield the URL."""
    service = Service(backend, ServiceOptions(keys))
    ready, port = threading.Event(), list[int]()

    def listening(number: int) -> None:
        port.append(number)
        ready.set()

    server = Server(configure(service.app, host="127.0.0.1", port=0), service.stopping, listening)

    def run() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def daemon() -> Iterator[DaemonBackend]:
    assert SANDBOXD.exists(), "make sandboxd"
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        backend = DaemonBackend(Path(folder))
        yield backend
        for name in backend.endpoints:
            backend.kill(name)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str, str]:
    """A keys file with two tenants, and their keys."""
    path = tmp_path / "keys.toml"
    ring = KeyRing(path)
    return path, ring.add("alice"), ring.add("bob")
