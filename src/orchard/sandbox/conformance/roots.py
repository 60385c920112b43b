"""Special images for the checks, written as OCI layouts from a static busybox: no registry, no build tool."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
APPLETS = ("sh", "cat", "echo", "id", "ls", "sleep", "stat", "pwd", "head", "tail", "seq", "wc", "tr", "mkdir", "true",
           "grep", "rm", "ln", "kill", "sort", "touch")  # fmt: skip


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


def _folder(path: str, mode: int = 0o755, uid: int = 0) -> Node:
    return Node(path, mode=mode, uid=uid, gid=uid, kind=tarfile.DIRTYPE)


def special_images(folder: Path, busybox: Path | None = None) -> dict[str, str]:
    """Write the special images below ``folder``; return kind -> reference. Empty where there is no static busybox.

    ``busybox``: that and nothing else. ``static``: one binary, no shell, no /etc/passwd. ``user``: USER app, ENV,
    WORKDIR, ENTRYPOINT, files of other owners. ``foreign``: another architecture.
    """
    found = busybox or shutil.which("busybox")
    if found is None:
        return {}
    binary = Path(found).read_bytes()
    base = (
        _folder("bin"), _folder("tmp", 0o1777), _folder("etc"), Node("bin/busybox", binary, 0o755),
        *(Node(f"bin/{name}", kind=tarfile.SYMTYPE, target="busybox") for name in APPLETS),
    )  # fmt: skip
    user = (
        *base, _folder("home"), _folder("home/app", 0o750, 1000), _folder("srv"),
        Node("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"),
        Node("etc/group", b"root:x:0:\napp:x:1000:\n"), Node("srv/owned", b"x", 0o640, 1234, 1234),
        Node("bin/enter", b"#!/bin/sh\necho entered > /tmp/entered\nexit 5\n", 0o755),
    )  # fmt: skip
    settings = {
        "User": "app", "Env": ["PATH=/bin", "IMAGE_SAYS=hello"], "WorkingDir": "/home/app",
        "Entrypoint": ["/bin/enter"], "Cmd": ["now"],
    }  # fmt: skip
    plain = {"Env": ["PATH=/bin"]}
    images = {
        "busybox": Image(base, plain),
        "static": Image((Node("busybox", binary, 0o755),)),
        "user": Image(user, settings),
        "foreign": Image(base, plain, "s390x" if ARCHITECTURE != "s390x" else "amd64"),
    }
    return {kind: write_layout(image, folder / kind) for kind, image in images.items()}
