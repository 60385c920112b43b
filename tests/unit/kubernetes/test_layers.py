"""Layers on disk: archives put behind each other, what must be in them, and the image they make."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import FileError, InternalError, Unavailable
from orchard.sandbox.kubernetes.changes import Changes
from orchard.sandbox.kubernetes.layers import complete, compress, open_end, write_image

FILE = {"type": "file", "size": 3}
MOST = 1 << 20
DOCKER = "application/vnd.docker.container.image.v1+json"


def archive(*names: str, content: bytes = b"abc") -> bytes:
    """An archive as sandboxd writes it: the end is two blocks."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as made:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        end = made.offset
    return out.getvalue()[:end] + bytes(1024)


def joined(*parts: bytes) -> io.BytesIO:
    whole = io.BytesIO()
    for part in parts:
        whole.write(part)
        open_end(whole)
    return whole


def test_archives_behind_each_other_are_one_with_what_is_deleted() -> None:
    whole = joined(archive("a"), archive("d\udcff"))
    complete(whole, Changes({b"a": FILE, b"d\xff": FILE}, [b"gone", b"x/gone"]), MOST)
    with tarfile.open(fileobj=io.BytesIO(whole.getvalue()), errors="surrogateescape") as read:
        assert read.getnames() == ["a", "d\udcff", ".wh.gone", "x/.wh.gone"]


def test_an_archive_without_its_end_was_cut() -> None:
    for cut in (archive("a")[:-1], b"", b"x" * 2048):
        with pytest.raises(Unavailable):
            joined(cut)


@pytest.mark.parametrize("facts", [{"type": "file", "size": 4}, {"type": "dir"}, {"type": "symlink"}])
def test_what_is_not_as_it_was_is_named(facts: dict[str, Any]) -> None:
    for name in ("a", "b"):
        with pytest.raises(FileError) as caught:
            complete(joined(archive("a")), Changes({name.encode(): facts}), MOST)
        assert caught.value.path == f"/{name}"


@pytest.mark.parametrize("docker", [False, True])
def test_an_image_is_the_base_and_one_layer(tmp_path: Path, docker: bool) -> None:
    whole = joined(archive("a"))
    complete(whole, Changes({b"a": FILE}), MOST)
    layer = compress(whole, tmp_path)
    assert compress(whole, tmp_path) == layer, "the same again"
    packed = (tmp_path / layer.digest.removeprefix("sha256:")).read_bytes()
    assert (gzip.decompress(packed), len(packed)) == (whole.getvalue(), layer.size)
    base = {"config": {"mediaType": DOCKER if docker else "x", "digest": "old", "size": 1}, "layers": [{"digest": "b"}]}
    config = {
        "rootfs": {"diff_ids": ["b"]},
        "history": [{"created_by": "b"}, {"empty_layer": True}],
        "config": {"U": 1},
    }
    digest = write_image(tmp_path, base, config, layer, {"created": "t", "created_by": "c"})
    raw = (tmp_path / "manifest.json").read_bytes()
    manifest = json.loads(raw)
    assert digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert [each["digest"] for each in manifest["layers"]] == ["b", layer.digest]
    assert ("docker" in manifest["layers"][1]["mediaType"]) is docker
    made = json.loads((tmp_path / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    assert made["rootfs"]["diff_ids"] == ["b", f"sha256:{hashlib.sha256(whole.getvalue()).hexdigest()}"]
    assert (len(made["history"]), made["config"]) == (3, {"U": 1})
    assert base["layers"] == [{"digest": "b"}], "what was given stays"


def test_a_base_without_layers_by_digest_is_refused(tmp_path: Path) -> None:
    whole = joined(archive("a"))
    with pytest.raises(InternalError):
        write_image(tmp_path, {"schemaVersion": 1}, {}, compress(whole, tmp_path), {})
