"""Archives that try to write outside the folder they are unpacked in."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _file(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), b"evil"


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def hostile_tars(outside: str) -> Iterator[tuple[str, bytes]]:
    """Yield (kind, archive); each would make a file called ``evil…`` in ``outside`` if unpacked carelessly."""
    yield "parent", _tar(_file("../evil"))
    yield "deep-parent", _tar(_file("a/../../evil-deep"))
    yield "absolute", _tar(_file(f"{outside}/evil-absolute"))
    yield "through-symlink", _tar(_link("s", ".."), _file("s/evil-through"))
    yield "through-absolute-symlink", _tar(_link("s", outside), _file("s/evil-absolute-link"))
    yield "chained-symlinks", _tar(_link("a", "."), _link("a/b", ".."), _file("a/b/evil-chained"))
    yield "hard-link-out", _tar(_link("h", "../evil-target", tarfile.LNKTYPE), _file("h"))
    yield "symlink-over-folder", _tar(_file("d/x"), _link("d", ".."), _file("d/evil-over"))
