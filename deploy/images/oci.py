"""An image of several layers as an OCI layout, the same bytes for the same files."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard.sandbox.layout import OCI, name_image, new_blobs, put_blob

_LEVEL = 6


@dataclass(frozen=True)
class Layer:
    """A gzipped tar in the cache."""

    path: Path
    diff_id: str
    """Digest of the tar itself."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    @property
    def digest(self) -> str:
        """Digest of the file."""
        with self.path.open("rb") as stream:
            return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def cached_layer(folder: Path, name: str, make: Callable[[Path], None]) -> Layer:
    """Return the layer ``name`` of ``folder``; ``make`` writes its tar where it is not there yet."""
    path, note = folder / f"{name}.tar.gz", folder / f"{name}.diff-id"
    if not (path.exists() and note.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        tar, draft = folder / f".{name}.tar", folder / f".{name}.gz"
        make(tar)
        with tar.open("rb") as stream:
            note.write_text("sha256:" + hashlib.file_digest(stream, "sha256").hexdigest())
            stream.seek(0)
            with draft.open("wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed:
                shutil.copyfileobj(stream, packed, 1 << 20)
        tar.unlink()
        draft.rename(path)
    for used in (path, note):
        used.touch()
    return Layer(path, note.read_text())


def pack(root: Path, tar: Path) -> None:
    """Write all below ``root`` as a tar that tells of no time, no user and no order of this machine."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=plain)


def write_image(folder: Path, layers: Sequence[Layer], config: dict[str, Any], architecture: str) -> str:
    """Write the image ``latest`` into the new ``folder``; return the digest of its manifest."""
    blobs = new_blobs(folder)

    def blob(document: object, kind: str) -> dict[str, Any]:
        return put_blob(blobs, json.dumps(document, sort_keys=True).encode(), f"{kind}+json")

    listed: list[dict[str, Any]] = []
    for layer in layers:
        digest = layer.digest
        (blobs / digest.removeprefix("sha256:")).hardlink_to(layer.path)
        listed.append({"mediaType": f"{OCI}.layer.v1.tar+gzip", "digest": digest, "size": layer.size})
    described = {
        "architecture": architecture, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }  # fmt: skip
    manifest = blob(
        {
            "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
            "config": blob(described, "config.v1"), "layers": listed,
        },
        "manifest.v1",
    )  # fmt: skip
    name_image(folder, manifest, "latest")
    return str(manifest["digest"])
