"""A real sandboxd as an ordinary process, and requests on it."""

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.daemon import SANDBOXD, DaemonBackend

from orchard.harness.protocol import HarnessLimits, HarnessRequest
from orchard.sandbox import Orchard, Sandbox


@pytest.fixture
async def backend() -> AsyncIterator[DaemonBackend]:
    assert SANDBOXD.exists(), "make sandboxd"
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        yield DaemonBackend(Path(folder))


@pytest.fixture
async def box(backend: DaemonBackend) -> AsyncIterator[Sandbox]:
    async with Orchard(backend=backend) as orchard, orchard.sandbox("host") as made:
        yield made


@pytest.fixture
def request_for(box: Sandbox, tmp_path: Path) -> Callable[..., HarnessRequest]:
    def make(url: str, **facts: object) -> HarnessRequest:
        limits = HarnessLimits(**{"turns": 10, "seconds": 600.0, "command_seconds": 200.0, **facts})  # pyright: ignore
        return HarnessRequest("Mend the pad.", box, box.info.workdir, url, "key", "m", tmp_path, limits)

    return make
