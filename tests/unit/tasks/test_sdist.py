import io
import tarfile
import zipfile

import pytest

from orchard.core.errors import TaskRefused
from orchard.tasks.release_pair.sdist import unpack


def tar(*members: tuple[str, bytes | str, int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content, mode in members:
            info = tarfile.TarInfo(name)
            info.mode = mode
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_files_come_without_the_top_folder_and_links_and_caches_stay_out() -> None:
    data = tar(("p-1/a.py", b"x", 0o644), ("p-1/run.sh", b"#!", 0o755), ("p-1/link", "/etc/passwd", 0o777),
               ("p-1/__pycache__/a.cpython-311.pyc", b"x", 0o644), ("p-1/b.pyc", b"x", 0o644))  # fmt: skip
    found = unpack(data, "p-1")
    assert {path: (file.data, file.executable) for path, file in found.items()} == {
        "a.py": (b"x", False), "run.sh": (b"#!", True),
    }  # fmt: skip


def test_a_zip_is_as_good() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("p-1/pkg/a.py", "one")
        archive.writestr("p-1/pkg/b.py", "two")
    assert {path: file.data for path, file in unpack(buffer.getvalue(), "p-1").items()} == {
        "pkg/a.py": b"one", "pkg/b.py": b"two",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["../x", "/etc/x", "p-1/../../x", "p-1/a\\b"])
def test_a_path_that_leaves_the_archive_is_refused(name: str) -> None:
    with pytest.raises(TaskRefused, match="unsafe") as caught:
        unpack(tar((name, b"x", 0o644)), "p-1")
    assert caught.value.reason == "no_sdist"


def test_a_bomb_is_refused_by_its_headers_before_it_is_read() -> None:
    info = tarfile.TarInfo("p-1/big")
    info.size = 1 << 40
    with pytest.raises(TaskRefused, match="too much"):
        unpack(info.tobuf() + b"\0" * 1024, "p-1")


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", tar(("p-1/a", b"x" * 5000, 0o644))[:-20], tar()],
    ids=["empty", "no archive", "cut short", "without a file"],
)
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(TaskRefused):
        unpack(data, "p-1")
