"""``orchard harness install --push`` before a real registry: each layer arrives there, under its name here."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.support.cli import Done, orchard
from tests.support.registry import Registry, registry

from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.harness.registry import HARNESSES
from orchard.sandbox.toolnames import parse_tool
from orchard.sandbox.tools import add


class Tiny:
    """A harness of two small layers."""

    name = "tiny"
    placement: Literal["inside"] = "inside"
    needs: Sequence[str] = ()
    source = Path()

    def check(self, config: Mapping[str, Any]) -> None: ...

    async def version(self) -> str:
        return "1"

    async def installed(self) -> bool:
        return True

    async def install(self) -> None: ...

    async def tools(self) -> Sequence[str]:
        return [add(name, Tiny.source / name) for name in ("runtime", "tiny")]

    async def run(self, request: HarnessRequest) -> HarnessResult:
        return HarnessResult(Stop.FAILED)

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HARNESSES, "tiny", f"{__name__}:Tiny")
    Tiny.source = tmp_path / "made"
    for name in ("runtime", "tiny"):
        (Tiny.source / name / "bin").mkdir(parents=True)
        (Tiny.source / name / "bin" / f"{name}-run").write_text(f"#!/bin/sh\necho {name}\n")
        (Tiny.source / name / "bin" / f"{name}-run").chmod(0o755)
        (Tiny.source / name / "latest").symlink_to("bin")


def push(tmp_path: Path, to: str, *words: str, **env: str) -> Done:
    known = {"ORCHARD_HOME": str(tmp_path / "home"), "ORCHARD_CACHE": str(tmp_path / "cache"), **env}
    return orchard("harness", "install", "tiny", "--push", to, *words, env=known)


def files(served: Registry, name: str, digest: str) -> dict[str, str]:
    """The files and links of a layer as a node that pulls it finds them."""
    [layer] = served.manifest(name, digest)["layers"]
    with tarfile.open(fileobj=io.BytesIO(served.blob(name, layer["digest"]))) as tar:
        return {
            one.name: one.linkname or (tar.extractfile(one) or io.BytesIO()).read().decode()
            for one in tar.getmembers()
            if not one.isdir()
        }


def test_each_layer_is_found_there_by_its_name_here(tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as served:
        done = [push(tmp_path, f"{served.at}/my/tools/", "--plain-http", "--json") for _ in range(2)]
        assert [one.returncode for one in done] == [0, 0], done[0].stderr.decode()
        first, [told] = (json.loads(one.stdout) for one in done)  # the second finds all there
        assert first[0]["pushed"] == told["pushed"]
        assert told["pushed"] == [f"{served.at}/my/tools/{layer}" for layer in told["layers"]]
        for layer, name in zip(map(parse_tool, told["layers"]), ("runtime", "tiny"), strict=True):
            found = files(served, f"my/tools/{name}", layer.digest)
            assert found == {f"bin/{name}-run": f"#!/bin/sh\necho {name}\n", "latest": "bin"}
    assert list((tmp_path / "cache" / "tools" / ".drafts").iterdir()) == []


def test_a_private_registry_is_opened_by_skopeos_logins(tmp_path: Path) -> None:
    with registry(tmp_path / "registry", private=True) as served:
        none = tmp_path / "none.json"
        none.write_text("{}")
        closed = push(tmp_path, f"{served.at}/tools", "--plain-http", REGISTRY_AUTH_FILE=str(none))
        assert (closed.returncode, b"skopeo login" in closed.stderr) == (4, True)
        opened = push(tmp_path, f"{served.at}/tools", "--plain-http", REGISTRY_AUTH_FILE=str(served.credentials))
        assert opened.returncode == 0, opened.stderr.decode()
        assert f"  {served.at}/tools/tiny@sha256:" in opened.stdout.decode()


def test_a_registry_that_is_not_there_or_speaks_otherwise_is_told(tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as served:
        secure = push(tmp_path, f"{served.at}/tools")
        assert (secure.returncode, b"--plain-http" in secure.stderr) == (7, True)
    gone = push(tmp_path, f"{served.at}/tools", "--plain-http")
    assert (gone.returncode, b"could not be pushed" in gone.stderr) == (7, True)
    for wrong in ("tools", "host.example/", "host.example/tools@sha256:0"):
        assert push(tmp_path, wrong).returncode == 2
