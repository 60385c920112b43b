"""Layers and images on disk: from the tars that sandboxd sends to what skopeo pushes, in flat memory."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from orchard.core.errors import FileError, InternalError, Unavailable
from orchard.sandbox.answers import BROKEN
from orchard.sandbox.kubernetes.changes import Changes, Facts, too_large
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.transport import encode_path

_PIECE = 1 << 20
_END = 1024  # zero bytes by which an archive ends
_LEVEL = 1
_OCI = "application/vnd.oci.image.layer.v1.tar+gzip"
_DOCKER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_KINDS = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}


@dataclass(frozen=True)
class Layer:
    """A compressed layer on disk."""

    path: Path
    digest: str
    size: int
    diff_id: str
    """Digest of what is compressed in it."""


def open_end(archive: IO[bytes]) -> None:
    """Take the end off an archive, so that another can be put behind it.

    Raises:
        Unavailable: it has none, so it was cut.
    """
    end = archive.seek(0, io.SEEK_END) - _END
    if end < 0 or end % tarfile.BLOCKSIZE or archive.seek(end) < 0 or archive.read(_END) != bytes(_END):
        raise Unavailable("the tree was cut off", reason=BROKEN)
    archive.seek(end)
    archive.truncate()


def complete(archive: IO[bytes], changes: Changes, most: int) -> None:
    """Add what is deleted to an archive without its end, end it, and check that all the changes are in it.

    Raises:
        Unsupported: it would take more than ``most`` bytes.
        FileError: something that was to be in it is not, or is not as it was.
    """
    archive.seek(0, io.SEEK_END)
    form: dict[str, Any] = {"format": tarfile.PAX_FORMAT, "errors": "surrogateescape"}
    with tarfile.open(fileobj=archive, mode="w", **form) as added:  # from where the file stands
        for path in changes.deleted:
            folder, slash, name = path.rpartition(b"/")
            whiteout = tarfile.TarInfo((folder + slash + b".wh." + name).decode("utf-8", "surrogateescape"))
            added.addfile(whiteout)
            if added.offset > most:
                raise too_large(most)
    archive.seek(0)
    missing = dict(changes.files)
    with tarfile.open(fileobj=archive, mode="r:", errors="surrogateescape") as written:
        while (member := written.next()) is not None:
            cast("Any", written).members.clear()  # else it keeps them all
            path = encode_path(member.name)
            if path in missing and _is(member, missing[path]):
                del missing[path]
    if missing:
        name = next(iter(missing)).decode("utf-8", "surrogateescape")
        raise FileError.of(
            f"/{name} could not be read, or changed meanwhile", errno_name="EIO", path=f"/{name}",
            hint="is a process of the sandbox that nothing can end still writing?",
        )  # fmt: skip


def _is(member: tarfile.TarInfo, facts: Facts) -> bool:
    if facts["type"] == "file":
        return member.islnk() or (member.isreg() and member.size == facts["size"])
    return member.type == _KINDS[facts["type"]]


def compress(archive: IO[bytes], folder: Path) -> Layer:
    """Write the archive as a layer into ``folder``, named by its digest; the same archive gives the same layer."""
    plain, packed, size = hashlib.sha256(), hashlib.sha256(), 0
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # gzip, without a time
    draft = folder / "layer"
    archive.seek(0)
    with draft.open("wb") as out:
        more = True
        while more:
            piece = archive.read(_PIECE)
            more = bool(piece)
            plain.update(piece)
            data = packer.compress(piece) if more else packer.flush()
            packed.update(data)
            size += out.write(data)
    return Layer(
        draft.rename(folder / packed.hexdigest()), f"sha256:{packed.hexdigest()}", size, f"sha256:{plain.hexdigest()}"
    )


def write_image(folder: Path, manifest: Json, config: Mapping[str, Any], layer: Layer, note: Json) -> str:
    """Add the layer to an image, as a ``dir:`` of skopeo without the layers below; return the image's digest.

    Args:
        folder: where the layer lies.
        manifest: of the image below, in OCI's or Docker's form.
        config: its configuration.
        layer: what comes on top.
        note: the entry of the history.

    Raises:
        InternalError: the image below is in a form that has no layers by digest.
    """
    manifest, config = deepcopy(manifest), deepcopy(dict(config))
    if not parts(manifest, "layers") or not part(config, "rootfs"):
        raise InternalError(f"an image of the form {manifest.get('mediaType')} cannot be built upon")
    docker = "vnd.docker" in str(part(manifest, "config").get("mediaType"))
    manifest["layers"].append({
        "mediaType": _DOCKER if docker else _OCI, "digest": layer.digest, "size": layer.size,
    })  # fmt: skip
    config["rootfs"]["diff_ids"].append(layer.diff_id)
    config["created"] = note.get("created")
    history = parts(config, "history")
    if sum(not each.get("empty_layer") for each in history) == len(config["rootfs"]["diff_ids"]) - 1:
        config["history"] = [*history, note]  # one whose entries do not match the layers is left as it is
    data = json.dumps(config, sort_keys=True).encode()
    manifest["config"] |= {"digest": _write(folder, data), "size": len(data)}
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    data = json.dumps(manifest, sort_keys=True).encode()
    (folder / "manifest.json").write_bytes(data)
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _write(folder: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return f"sha256:{digest}"
