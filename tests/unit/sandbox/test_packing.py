"""Archives from a sandbox cannot reach out of their target on this machine."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from orchard.core.errors import FileError
from orchard.sandbox.packing import Extractor, tar_blocks


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"evil"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o6755
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def extract(target: Path, *members: tuple[tarfile.TarInfo, bytes]) -> list[str]:
    with Extractor(target) as into:
        for info, data in members:
            into.add(info, io.BytesIO(data))
    return into.skipped


HOSTILE = {
    "parent": [member("../x")],
    "parent within": [member("a/../../x")],
    "absolute": [member("{outside}/x")],
    "file through a link": [member("l", tarfile.SYMTYPE, "{outside}"), member("l/x")],
    "folder through a link": [member("l", tarfile.SYMTYPE, "{outside}"), member("l/x", tarfile.DIRTYPE)],
    "file through a chain": [
        member("a", tarfile.SYMTYPE, ".."),
        member("b", tarfile.SYMTYPE, "a/outside"),
        member("b/x"),
    ],
    "hard link out": [member("h", tarfile.LNKTYPE, "../outside/secret"), member("h")],
    "hard link through a link": [
        member("l", tarfile.SYMTYPE, "{outside}"),
        member("h", tarfile.LNKTYPE, "l/secret"),
        member("h"),
    ],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    members: list[tuple[tarfile.TarInfo, bytes]] = []
    for info, data in HOSTILE[name]:
        copy = tarfile.TarInfo(info.name.format(outside=outside))
        copy.type, copy.size, copy.linkname = info.type, info.size, info.linkname.format(outside=outside)
        members.append((copy, data))
    with pytest.raises(FileError):
        extract(target, *members)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "kept"
    assert not (tmp_path / "x").exists()


def test_a_file_in_place_of_a_link_replaces_the_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "target").mkdir()
    (tmp_path / "target/f").symlink_to("../secret")
    extract(tmp_path / "target", member("f", data=b"new"))
    assert (tmp_path / "secret").read_text() == "kept"
    assert (tmp_path / "target/f").read_text() == "new"


def test_modes_are_permissions_only_and_special_files_are_named(tmp_path: Path) -> None:
    skipped = extract(tmp_path / "t", member("f"), member("fifo", tarfile.FIFOTYPE), member("dev", tarfile.CHRTYPE))
    assert (tmp_path / "t/f").stat().st_mode & 0o7777 == 0o755
    assert skipped == ["fifo", "dev"]
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["f"]


def test_a_read_only_folder_is_filled_first(tmp_path: Path) -> None:
    closed, _ = member("d", tarfile.DIRTYPE)
    closed.mode, closed.mtime = 0o555, 1000.5
    extract(tmp_path / "t", (closed, b""), member("d/f"))
    assert (tmp_path / "t/d").stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "t/d").stat().st_mtime == 1000.5
    assert (tmp_path / "t/d/f").read_bytes() == b"evil"
    (tmp_path / "t/d").chmod(0o755)


def test_what_is_packed_is_a_tar_that_others_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ("n" * 150)).write_bytes(os.urandom(1000))
    (tmp_path / "l").symlink_to("sub")
    os.mkfifo(tmp_path / "p")
    skipped: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_blocks(tmp_path, skipped)))) as archive:
        assert archive.getnames() == ["l", "sub", "sub/" + "n" * 150]
        content = archive.extractfile("sub/" + "n" * 150)
        assert content is not None
        assert content.read() == (tmp_path / "sub" / ("n" * 150)).read_bytes()
    assert skipped == ["p"]
