"""The local backend for real: roots that need no download, and what a sandbox may not leave behind."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.traces import traces

from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Image of a root that holds busybox alone: no folder but /bin."""
    root = tmp_path_factory.mktemp("busybox")
    (root / "bin").mkdir()
    busybox = shutil.which("busybox") or "/bin/busybox"
    shutil.copy(busybox, root / "bin" / "busybox")
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    for folder in (root, *root.parents[:2]):  # an ordinary user's sandbox reads it with other ids
        folder.chmod(0o755)
    yield f"dir:{root}"
    shutil.rmtree(root)


@pytest.fixture
def settings(local_home: Path) -> LocalSettings:
    return LocalSettings(home=local_home, sweep_every=0.0)


@pytest.fixture
async def backend(settings: LocalSettings) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(settings)
    yield backend
    await backend.close()


@pytest.fixture
def orchard(backend: LocalBackend) -> Orchard:
    return Orchard(backend=backend)


@pytest.fixture
def left(local_home: Path) -> Callable[[str], list[str]]:
    return lambda sandbox_id: traces(local_home, sandbox_id)
