"""Special images for the checks, written as OCI layouts from a static busybox: no registry, no build tool."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from orchard.sandbox.layout import ARCHITECTURE, Image, Node, write_layout

APPLETS = ("sh", "cat", "echo", "id", "ls", "sleep", "stat", "pwd", "head", "tail", "seq", "wc", "tr", "mkdir", "true",
           "grep", "rm", "ln", "kill", "sort", "touch")  # fmt: skip


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
