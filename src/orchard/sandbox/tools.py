"""The tool store of this machine: folders of programs by name and digest, which sandboxes get read-only.

The digest is that of the manifest of an OCI image whose only layer is the folder, so the same layer goes by the same
name wherever it lies: unpacked here, or in a registry. A layer's tar follows from the folder alone: names in order,
everything root's, one time, modes 644 and 755. What is kept is the folder; the image is written when it is pushed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from orchard.core.disk import needs_room
from orchard.core.errors import InvalidArgument
from orchard.core.scratch import scratch
from orchard.sandbox.layout import ARCHITECTURE, OCI, name_image, new_blobs, put_blob
from orchard.sandbox.toolcache import place, store, trim, used
from orchard.sandbox.toolnames import Tool, check_name

INSTALL_HINT = "install it on the machine that makes the sandboxes: orchard harness install NAME"
_TIME = 946_684_800  # 2000-01-01: of before 1980, zip takes no file


def add(name: str, folder: Path, *, move: bool = False) -> str:
    """Bring ``folder`` into the store as tool layer ``name``; return ``NAME@sha256:…``, the same for the same content.

    Times, owners and all of the modes but who may execute are made the same for all. Layers that nobody has used for a
    day go where the store would take more than ``ORCHARD_TOOLS_LIMIT`` (20 GiB) otherwise.

    Args:
        name: lower-case letters and digits with ``. _ -`` between them.
        folder: what sandboxes are to see as ``/opt/orchard/tools/NAME``; programs belong into its ``bin``.
        move: take the folder itself, which lies below the cache folder and may then be changed, not a copy.

    Raises:
        InvalidArgument: the name is none, or the folder holds what is neither file, folder nor link.
        MachineUnfit: the disk is full.
    """
    home = store() / check_name(name)
    for path in _walk(folder):
        if not any(is_kind(path.lstat().st_mode) for is_kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)):
            raise InvalidArgument(f"{path} is neither file, folder nor link", field="folder")
    with needs_room(home), scratch(store() / ".drafts") as draft:
        fresh = draft / "root"
        if move:
            folder.rename(fresh)
        else:
            shutil.copytree(folder, fresh, symlinks=True)
        _level(fresh)
        tool = Tool(name, f"sha256:{hashlib.sha256(_manifest(_measure(fresh))).hexdigest()}")
        home.mkdir(parents=True, exist_ok=True)
        if not place(tool).exists():
            try:
                fresh.rename(place(tool))
            except OSError:
                if not place(tool).exists():  # else another process was first
                    raise
        used(tool)
    trim()
    return str(tool)


def find(tool: Tool) -> Path | None:
    """Return the unpacked folder of ``tool``, which counts as used now, or None where the store has it not."""
    folder = place(tool)
    if not folder.is_dir():
        return None
    used(tool)
    return folder


def write_image(folder: Path, layout: Path) -> str:
    """Write the OCI layout of an unpacked tool into ``layout``, new or empty; return the manifest's digest."""
    blobs = new_blobs(layout)
    draft = blobs / "draft"
    with draft.open("wb") as file:
        layer = _measure(folder, file)
    draft.rename(blobs / layer["digest"].removeprefix("sha256:"))
    put_blob(blobs, _config(layer), "config.v1+json")
    manifest = put_blob(blobs, _manifest(layer), "manifest.v1+json")
    name_image(layout, manifest, "1")
    return str(manifest["digest"])


def _level(folder: Path) -> None:
    """Make modes, owners and times those of the layer, so that a folder and its image are seen alike."""
    me = (os.geteuid(), os.getegid())
    for path in [folder, *_walk(folder)]:
        facts = path.lstat()
        if facts.st_uid != me[0] or facts.st_gid != me[1]:
            os.chown(path, *me, follow_symlinks=False)
        if not stat.S_ISLNK(facts.st_mode):
            path.chmod(_mode(facts))
    for path in [folder, *_walk(folder)]:
        os.utime(path, (_TIME, _TIME), follow_symlinks=False)


def _mode(facts: os.stat_result) -> int:
    return 0o755 if stat.S_ISDIR(facts.st_mode) or facts.st_mode & stat.S_IXUSR else 0o644


def _walk(folder: Path) -> Iterator[Path]:
    """Yield what is below ``folder``, in one order everywhere."""
    for entry in sorted(os.scandir(folder), key=lambda one: os.fsencode(one.name)):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


class _Meter:
    """A file that is hashed and counted, and written where there is one."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        if self._file is not None:
            self._file.write(data)
        self.sha256.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size


def _measure(folder: Path, file: IO[bytes] | None = None) -> dict[str, Any]:
    """Return the descriptor of the layer of ``folder``; write its tar to ``file``."""
    meter = _Meter(file)
    with tarfile.open(fileobj=cast("IO[bytes]", meter), mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(folder):
            _pack(tar, path, str(path.relative_to(folder)))
    return {"mediaType": f"{OCI}.layer.v1.tar", "digest": f"sha256:{meter.sha256.hexdigest()}", "size": meter.size}


def _pack(tar: tarfile.TarFile, path: Path, name: str) -> None:
    facts, info = path.lstat(), tarfile.TarInfo(name)
    info.mtime, info.mode = _TIME, _mode(facts)
    if stat.S_ISLNK(facts.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(info)
    elif stat.S_ISDIR(facts.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = facts.st_size
        with path.open("rb") as content:
            tar.addfile(info, content)


def _config(layer: dict[str, Any]) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
    return json.dumps({"architecture": ARCHITECTURE, "os": "linux", "config": {}, "rootfs": rootfs}).encode()


def _manifest(layer: dict[str, Any]) -> bytes:
    raw = _config(layer)
    config = {
        "mediaType": f"{OCI}.config.v1+json", "digest": f"sha256:{hashlib.sha256(raw).hexdigest()}", "size": len(raw),
    }  # fmt: skip
    kind = f"{OCI}.manifest.v1+json"
    return json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]}).encode()
