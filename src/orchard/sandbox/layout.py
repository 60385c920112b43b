"""A small image written as an OCI layout: no registry, no build tool, no root."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WORDS = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}
ARCHITECTURE = _WORDS.get(platform.machine(), platform.machine())
"""This machine's, in the words of images."""
OCI = "application/vnd.oci.image"
"""What the media types of an OCI image begin with."""


@dataclass(frozen=True)
class Node:
    """One file of a layer."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    kind: bytes = tarfile.REGTYPE
    target: str = ""


@dataclass(frozen=True)
class Image:
    """Layers and settings of a small image."""

    nodes: tuple[Node, ...]
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    architecture: str = ARCHITECTURE


def write_layout(image: Image, folder: Path) -> str:
    """Write an OCI image layout into ``folder``; return the reference ``oci:FOLDER:1``."""
    blobs = new_blobs(folder)
    layer = put_blob(blobs, _layer(image.nodes), "layer.v1.tar")
    config = {
        "architecture": image.architecture, "os": "linux", "config": image.config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
        "config": put_blob(blobs, json.dumps(config).encode(), "config.v1+json"), "layers": [layer],
    }  # fmt: skip
    name_image(folder, put_blob(blobs, json.dumps(manifest).encode(), "manifest.v1+json"), "1")
    return f"oci:{folder}:1"


def new_blobs(folder: Path) -> Path:
    """Begin an OCI layout in ``folder``, new or empty; return the folder of its blobs."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    return blobs


def put_blob(blobs: Path, data: bytes, kind: str) -> dict[str, Any]:
    """Write a blob of media type ``OCI.kind``; return its descriptor."""
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def name_image(folder: Path, manifest: dict[str, Any], name: str) -> None:
    """End an OCI layout: its one image, by its manifest's descriptor, is called ``name``."""
    entry = {**manifest, "annotations": {"org.opencontainers.image.ref.name": name}}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _layer(nodes: tuple[Node, ...]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for node in nodes:
            info = tarfile.TarInfo(node.path)
            info.mode, info.uid, info.gid, info.type, info.linkname = (
                node.mode,
                node.uid,
                node.gid,
                node.kind,
                node.target,
            )
            info.size = len(node.data)
            archive.addfile(info, io.BytesIO(node.data))
    return buffer.getvalue()
