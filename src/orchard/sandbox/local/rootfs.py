"""Images made on this machine: from a tar of a root, and a small Debian or Ubuntu by mmdebstrap."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchard.core.config import cache_dir
from orchard.core.disk import disk_full, met_full
from orchard.core.errors import InternalError, InvalidArgument, MachineUnfit
from orchard.core.scratch import locked
from orchard.sandbox.layout import ARCHITECTURE, OCI, name_image, new_blobs, put_blob
from orchard.sandbox.local.images import DEFAULT_PATH, local_name
from orchard.sandbox.local.powers import find_powers
from orchard.sandbox.local.process import call
from orchard.sandbox.local.settings import LocalSettings
from orchard.sandbox.local.storage import Storage

_RECIPE = "1"
"""Raised whenever the same packages would give another root."""
_BUILD_SECONDS = 900.0
_UNWANTED = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
_ENV = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}


def import_tar(path: Path, name: str, *, settings: LocalSettings | None = None, env: Mapping[str, str] = _ENV) -> str:
    """Make an image of one layer out of an uncompressed tar of a root.

    Args:
        path: the tar.
        name: what the image is to be called, e.g. ``debian-small``.
        settings: whose store it goes to.
        env: the image's ENV.

    Returns:
        The image's digest, ``sha256:…``.

    Raises:
        InvalidArgument: the file is no uncompressed tar.
        MachineUnfit: skopeo is missing.
    """
    settings = settings or LocalSettings()
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.home, prefix=".layout-") as draft:
        make_layout(path, Path(draft), env)
        return import_layout(Path(draft), name, settings)


def import_layout(layout: Path, name: str, settings: LocalSettings) -> str:
    """Bring the image ``latest`` of an OCI layout into the store under ``name``; return its digest."""
    storage, full = Storage(settings.home, find_powers()), local_name(name)
    index = json.loads((layout / "index.json").read_text())
    digest = str(index["manifests"][0]["digest"])
    with storage.only_one(full):
        stored = storage.find([full])
        if stored is None or stored.digest != digest:
            source = f"oci:{layout}:latest"
            done = storage.run("skopeo", ["--insecure-policy", "copy", "--quiet", source, storage.place(full)])
            if done.code and met_full(done.output, storage.root):
                raise disk_full(storage.root, done.output.strip()[-500:])
            if done.code:
                raise InternalError(f"skopeo could not bring {layout} into the store: {done.output.strip()[-500:]}")
    return digest


def make_layout(tar: Path, layout: Path, env: Mapping[str, str] = _ENV) -> None:
    """Write an OCI layout with one image, ``latest``, of one layer: ``tar``, hard-linked where possible.

    Raises:
        InvalidArgument: the file is no uncompressed tar.
    """
    blobs = new_blobs(layout)
    with tar.open("rb") as stream:
        if stream.read(262)[257:] != b"ustar":
            raise InvalidArgument(f"{tar} is no uncompressed tar", field="path")
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    try:
        os.link(tar, blobs / digest)
    except OSError:  # another file system
        shutil.copyfile(tar, blobs / digest)
    config = {
        "architecture": ARCHITECTURE, "os": "linux",
        "config": {"Env": [f"{name}={value}" for name, value in env.items()]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}, "history": [{"created_by": "orchard"}],
    }  # fmt: skip
    layer = {"digest": f"sha256:{digest}", "size": tar.stat().st_size, "mediaType": f"{OCI}.layer.v1.tar"}
    manifest = {
        "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
        "config": put_blob(blobs, json.dumps(config).encode(), "config.v1+json"), "layers": [layer],
    }  # fmt: skip
    name_image(layout, put_blob(blobs, json.dumps(manifest).encode(), "manifest.v1+json"), "latest")


def build_debian_image(
    packages: Sequence[str],
    *,
    suite: str | None = None,
    cache: Path | None = None,
    settings: LocalSettings | None = None,
) -> str:
    """Return the digest of an image of a minimal Debian or Ubuntu with ``packages``.

    The root is built once (half a minute, from the distribution's mirror) and kept in the cache; after that the image
    is only brought into the store.

    Args:
        packages: names of packages besides the minimal system.
        suite: e.g. ``bookworm``; None is this machine's own, or Debian stable where it is neither.
        cache: folder of built roots; None is Orchard's cache folder.
        settings: whose store it goes to.

    Raises:
        MachineUnfit: mmdebstrap is missing or failed, with its own words.
    """
    settings = settings or LocalSettings()
    suite = suite or _own_suite()
    wanted = sorted(set(packages))
    words = json.dumps([_RECIPE, platform.machine(), suite, wanted])
    key = hashlib.sha256(words.encode()).hexdigest()[:16]
    roots = (cache or cache_dir()) / "roots"
    roots.mkdir(parents=True, exist_ok=True)
    layout = roots / f"{suite}-{key}"
    with locked(roots / f".{key}.lock"):
        if not layout.exists():
            with tempfile.TemporaryDirectory(dir=roots, prefix=".build-") as draft:
                tar = Path(draft) / "root.tar"
                bootstrap(suite, wanted, tar)
                make_layout(tar, Path(draft) / "layout")
                (Path(draft) / "layout").rename(layout)
    return import_layout(layout, f"orchard-{suite}:{key}", settings)


def bootstrap(suite: str, packages: Sequence[str], tar: Path, variant: str = "minbase") -> None:
    """Write a tar of a Debian or Ubuntu with ``packages``; the variant ``extract`` has them alone, not set up.

    Raises:
        MachineUnfit: mmdebstrap is missing or failed, with its own words.
    """
    if not shutil.which("mmdebstrap"):
        raise MachineUnfit(
            "mmdebstrap is missing, and building an image needs it", hint="sudo apt-get install mmdebstrap"
        )
    mode = "root" if os.getuid() == 0 else "unshare"
    options = [f"--mode={mode}", f"--variant={variant}", "--skip=output/dev", '--aptopt=Acquire::Retries "3"']
    options += [f"--dpkgopt=path-exclude={path}" for path in _UNWANTED]
    options.append('--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"')  # the host's own
    if packages:
        options.append(f"--include={','.join(packages)}")
    done = call(["mmdebstrap", "--quiet", *options, suite, str(tar)], timeout=_BUILD_SECONDS)
    if done.code:
        raise MachineUnfit(
            f"mmdebstrap could not build {suite}: {done.output.strip()[-800:]}",
            hint="try by hand: mmdebstrap --variant=minbase " + suite + " /dev/null",
        )


def _own_suite() -> str:
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    facts = {name: value.strip('"') for name, value in facts.items()}
    return facts.get("VERSION_CODENAME", "stable") if facts.get("ID") in ("debian", "ubuntu") else "stable"
