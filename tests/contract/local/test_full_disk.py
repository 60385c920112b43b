"""A disk that is full, told as such; and nothing half-made left on it."""

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchard.core.errors import MachineUnfit
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.local.rootfs import make_layout
from orchard.sandbox.types import State

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")


@pytest.fixture
def small_home(tmp_path: Path) -> Iterator[Path]:
    """A home on a file system of 4 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.fixture
async def backend(small_home: Path) -> AsyncIterator[LocalBackend]:
    """Of the small home; nothing works there any more behind the scenes when it is unmounted."""
    backend = LocalBackend(LocalSettings(home=small_home, sweep_every=0.0))
    yield backend
    await backend.close()


async def test_a_full_disk_is_no_reason_to_keep_a_sandbox(
    backend: LocalBackend, small_home: Path, busybox_root: str
) -> None:
    async with Orchard(backend=backend) as orchard:
        box = await orchard.create(busybox_root)
        full = await box.run("cat /dev/zero > /fill")
        assert full.exit_code
        assert b"No space" in full.stderr
        await orchard.delete(box.id)
        info = await backend.get(box.id)
        assert (info.state, info.reason) == (State.GONE, "deleted")
        assert not [path for path in (small_home / "ended").iterdir() if path.name.startswith(".")]
        other = await orchard.create(busybox_root)
        await orchard.delete(other.id)


def left_in(home: Path) -> list[Path]:
    """What a create that failed may have left half-made."""
    folders = ("sandboxes", "making", "runtime")
    return [path for name in folders for path in (home / name).iterdir()] + [
        path for path in home.rglob(".*") if "storage" not in path.parts
    ]


@pytest.mark.parametrize("left_over", [0, 4096, 12288, 40960])
async def test_a_create_on_a_full_disk_says_so_and_leaves_nothing(
    backend: LocalBackend, small_home: Path, busybox_root: str, left_over: int
) -> None:
    async with Orchard(backend=backend) as orchard:
        assert await orchard.list() == []
        filler = small_home / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.truncate(filler, filler.stat().st_size - left_over)
        for _ in range(2):
            with pytest.raises(MachineUnfit, match=f"the disk of {small_home}.* is full.*free space"):
                await orchard.create(busybox_root, key="the-key")
        filler.unlink()
        await backend.close()  # waits for the sweep
        assert not left_in(small_home)
        box = await orchard.create(busybox_root, key="the-key")
        assert (await box.run("true")).ok
        await box.delete()


@pytest.fixture
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The layout of an image of 8 MiB of noise."""
    folder = tmp_path_factory.mktemp("image")
    with tarfile.open(folder / "root.tar", "w") as tar:
        entry = tarfile.TarInfo("noise")
        entry.size = 8 << 20
        tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    make_layout(folder / "root.tar", folder / "layout")
    yield folder / "layout"
    shutil.rmtree(folder)


async def test_an_image_that_does_not_fit_is_told_as_a_full_disk(
    backend: LocalBackend, small_home: Path, big: Path
) -> None:
    async with Orchard(backend=backend) as orchard:
        with pytest.raises(MachineUnfit, match=f"the disk of {small_home}.* is full"):
            await orchard.create(f"oci:{big}")
    await backend.close()  # waits for the sweep
    assert not left_in(small_home)


async def test_a_diff_says_whose_disk_is_full(
    settings: LocalSettings, busybox_root: str, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_home))
    elsewhere = LocalBackend(settings)
    async with Orchard(backend=elsewhere) as orchard, orchard.sandbox(busybox_root) as box:
        assert (await box.run("mkdir /w; cd /w; head -c 6000000 /dev/urandom > noise")).ok
        with pytest.raises(MachineUnfit, match=f"the disk of {small_home}.* is full"):
            await box.diff("/w")
    await elsewhere.close()
    assert os.listdir(small_home) == []  # noqa: PTH208
