"""A real sandboxd on the real wire, without a container."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.daemon import SANDBOXD, DaemonBackend

from orchard.sandbox import Orchard, Sandbox


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        yield Path(folder)


@pytest.fixture
async def daemon(short_path: Path) -> AsyncIterator[DaemonBackend]:
    assert SANDBOXD.exists(), "make sandboxd"
    backend = DaemonBackend(short_path)
    yield backend
    for info in (await backend.list()).items:
        await backend.delete(info.id)


@pytest.fixture
async def orchard(daemon: DaemonBackend) -> AsyncIterator[Orchard]:
    async with Orchard(backend=daemon) as door:
        yield door


@pytest.fixture
async def box(orchard: Orchard) -> AsyncIterator[Sandbox]:
    async with orchard.sandbox("host") as made:
        yield made
