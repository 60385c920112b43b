"""Fixtures for every room: a store of images for the session, throw-away homes of the local backend on it."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.local.powers import find_powers
from orchard.sandbox.local.rootfs import build_debian_image

DEBIAN_PACKAGES = ("ca-certificates", "git", "python3")


async def _end_all(home: Path) -> None:
    backend = LocalBackend(LocalSettings(home=home))
    for box in (await backend.list(limit=1000)).items:
        await backend.delete(box.id)
    await backend.close()


def _throw_away() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="orchard-home-"))
    yield home
    if (home / "sandboxes").exists():
        asyncio.run(_end_all(home))
    find_powers().remove_tree(home)


@pytest.fixture(scope="session")
def image_home() -> Iterator[Path]:
    """A home for the whole session, whose store holds the session's images."""
    yield from _throw_away()


@pytest.fixture
def local_home(image_home: Path) -> Iterator[Path]:
    """A throw-away home for one test; its store of images is the session's. What still lives in it is ended."""
    for home in _throw_away():
        for name in ("storage", "storage-run"):
            (image_home / name).mkdir(mode=0o700, exist_ok=True)
            (home / name).symlink_to(image_home / name)
        yield home


@pytest.fixture(scope="session")
def debian_image(image_home: Path) -> str:
    """Digest of a small Debian (or Ubuntu, where that is the machine's) with Python and git; in ``local_home`` too."""
    return build_debian_image(DEBIAN_PACKAGES, settings=LocalSettings(home=image_home))
