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

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


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
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob(_layer(image.nodes), "layer.v1.tar")
    config = {
        "architecture": image.architecture, "os": "linux", "config": image.config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"), "layers": [layer],
    }  # fmt: skip
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return f"oci:{folder}:1"


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
