"""The manifests of images on disk: made once, bounded, and shared by processes that remove them."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from orchard.sandbox.kubernetes import manifests
from orchard.sandbox.kubernetes.manifests import ImageManifests
from orchard.sandbox.kubernetes.registry import Base
from orchard.sandbox.protocol import Backend
from orchard.sandbox.types import Endpoint

SIZE = 1000


class Boxes:
    """Makes sandboxes that are none, and counts them."""

    def __init__(self) -> None:
        self.made = list[str]()

    async def create(self, spec: Any, key: str) -> Any:
        self.made.append(spec.image)
        return type("Info", (), {"id": f"sb-{len(self.made)}"})()

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        return Endpoint("http://127.0.0.1:1", "")

    async def delete(self, sandbox_id: str, *, wait: bool) -> None:
        return


def put(path: Path, age: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * SIZE)
    os.utime(path, (time.time() - age, time.time() - age))


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path))
    monkeypatch.setattr(manifests, "_MOST", 3 * SIZE)

    async def take(_: Any, path: Path) -> None:
        put(path)

    monkeypatch.setattr(manifests, "take", take)
    return tmp_path / "kubernetes" / "manifests"


def image(number: int) -> Base:
    return cast("Base", type("Base", (), {"reference": f"h/x@sha256:{number:064}"})())


async def use(known: ImageManifests, number: int) -> None:
    with await known.of(image(number), None) as held:
        assert len(held.read()) == SIZE


async def test_beyond_a_size_the_manifests_go_that_were_not_used_for_longest(folder: Path) -> None:
    boxes = Boxes()
    known = ImageManifests(cast("Backend", boxes), "daemon")
    for number in (1, 2, 3, 1, 4, 5):
        await use(known, number)
        await asyncio.sleep(0.02)  # a later time of use
    assert len(kept(folder)) == 3
    for number in (1, 4, 5):
        await use(known, number)
    assert len(boxes.made) == 5
    await use(known, 2)
    assert len(boxes.made) == 6


async def test_what_another_process_removes_is_still_read_and_made_again(folder: Path) -> None:
    boxes = Boxes()
    known = ImageManifests(cast("Backend", boxes), "daemon")
    with await known.of(image(1), None) as held:
        for path in kept(folder):
            path.unlink()
        assert len(held.read()) == SIZE
    await use(known, 1)
    assert len(boxes.made) == 2


async def test_drafts_of_processes_that_were_killed_go_and_those_of_others_stay(folder: Path) -> None:
    put(folder / ".dead.gz.1.x", age=7200.0)
    put(folder / ".busy.gz.2.x", age=60.0)
    await use(ImageManifests(cast("Backend", Boxes()), "daemon"), 1)
    names = [path.name for path in kept(folder)]
    assert names[0] == ".busy.gz.2.x"
    assert len(names) == 2
