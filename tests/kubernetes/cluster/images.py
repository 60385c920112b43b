"""The images of the lane, as OCI layouts in the cache: built once, pushed to the registry when a cluster comes up."""

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubernetes.cluster.build import CACHE, locked
from tests.kubernetes.cluster.processes import run
from tests.kubernetes.cluster.say import say

from orchard.core.config import cache_dir
from orchard.core.errors import MachineUnfit
from orchard.sandbox.layout import ARCHITECTURE
from orchard.sandbox.local.rootfs import build_debian_image, make_layout
from orchard.sandbox.local.settings import LocalSettings

_HERE = Path(__file__)
_DEBIAN_PACKAGES = ("ca-certificates", "git", "python3")
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True)
class Recipe:
    """How an image is made: what fills its root, and what its config says."""

    fill: Callable[[Path, Path], None]
    """Called with the empty root and the folder of programs."""
    config: dict[str, object] = field(default_factory=dict[str, object])
    architecture: str = ARCHITECTURE


def layouts(programs: Path) -> dict[str, Path]:
    """Return an OCI layout, with the image ``latest``, for each image by name; build what is missing.

    Raises:
        MachineUnfit: a tool is missing (gcc, busybox, mmdebstrap).
    """
    key = hashlib.sha256(b"".join((_HERE.parent / name).read_bytes() for name in ("images.py", "pause.c")))
    key.update(str((programs / "coredns").resolve()).encode())
    folder = CACHE / "images" / key.hexdigest()[:12]
    with locked("images"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, recipe in _RECIPES.items():
            if not (folder / name).exists():
                _build(folder / name, recipe, programs)
        if not (folder / "debian").exists():
            say("building image debian (a minute)")
            _debian(folder / "debian")
        return {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}


def _build(layout: Path, recipe: Recipe, programs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=layout.parent, prefix=".build-") as draft:
        root, tar = Path(draft) / "root", Path(draft) / "root.tar"
        root.mkdir()
        recipe.fill(root, programs)
        with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as archive:
            archive.add(root, ".")
        make_layout(tar, Path(draft) / "layout", _PATH)
        _amend(Path(draft) / "layout", recipe)
        (Path(draft) / "layout").rename(layout)


def _amend(layout: Path, recipe: Recipe) -> None:
    """Put the recipe's config and architecture into the layout's one image."""
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(_blob(layout, index["manifests"][0]).read_text())
    config = json.loads(_blob(layout, manifest["config"]).read_text())
    config["architecture"] = recipe.architecture
    config["config"] |= recipe.config
    manifest["config"] |= _add(layout, config)
    index["manifests"][0] |= _add(layout, manifest)
    (layout / "index.json").write_text(json.dumps(index))


def _blob(layout: Path, descriptor: dict[str, str]) -> Path:
    return layout / "blobs" / descriptor["digest"].replace(":", "/")


def _add(layout: Path, document: object) -> dict[str, object]:
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _debian(layout: Path) -> None:
    """Take the cached root of the local backend's Debian image."""
    with tempfile.TemporaryDirectory(dir=layout.parent, prefix=".build-") as draft:
        digest = build_debian_image(_DEBIAN_PACKAGES, settings=LocalSettings(home=Path(draft) / "home"))
        roots = (path.parent for path in (cache_dir() / "roots").glob("*/index.json") if digest in path.read_text())
        ready = Path(draft) / "layout"
        copy = ("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-compress")  # once, not at each push
        run(*copy, f"oci:{next(roots)}:latest", f"oci:{ready}:latest")
        ready.rename(layout)


def _single(path: str) -> Callable[[Path, Path], None]:
    """Return a filler that leaves nothing but pause.c's program at ``path``."""

    def fill(root: Path, programs: Path) -> None:
        run("gcc", "-Os", "-static", "-s", "-o", root / path, _HERE.parent / "pause.c")

    return fill


def _coredns(root: Path, programs: Path) -> None:
    shutil.copy(programs / "coredns", root / "coredns")


def _busybox(root: Path, programs: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise MachineUnfit("busybox is missing", hint="scripts/setup cluster")
    for folder in ("bin", "etc", "home/user", "root", "tmp", "usr/bin", "var"):
        (root / folder).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in run(busybox, "--list").split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "usr" / "bin" / "env").symlink_to("../../bin/busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home" / "user", 1000, 1000)


_FOREIGN = "arm64" if ARCHITECTURE == "amd64" else "amd64"
_RECIPES = {
    "pause": Recipe(_single("pause"), {"Entrypoint": ["/pause"]}),
    "scratch": Recipe(_single("app"), {"Entrypoint": ["/app"]}),
    "foreign": Recipe(_single("app"), {"Entrypoint": ["/app"]}, _FOREIGN),
    "busybox": Recipe(_busybox, {"Cmd": ["sh"]}),
    "nonroot": Recipe(_busybox, {"Cmd": ["sh"], "User": "1000:1000", "WorkingDir": "/home/user"}),
    "coredns": Recipe(_coredns, {"Entrypoint": ["/coredns"]}),
}
IMAGES = (*_RECIPES, "debian")
"""Names of the images; each is in the registries as ``NAME:1``."""
