"""The two images of a deployment, made without a container daemon: ``python -m deploy.images.build [REGISTRY]``.

``orchard-sandboxd`` is the daemon and nothing else. ``orchard-service`` is Debian's python3 and skopeo, Orchard's
dependencies and Orchard: three layers, each kept in the cache under a key of what it is made of, so that a change of
Orchard rewrites the last one alone. Files carry no time, user or order of the machine that built them; Debian's layer
is the same as long as its archive is.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.images.oci import cached_layer, pack, write_image

from orchard.core.config import base_env, cache_dir
from orchard.core.errors import MachineUnfit
from orchard.sandbox.kubernetes.daemon_image import write_daemon_image
from orchard.sandbox.layout import ARCHITECTURE
from orchard.sandbox.local.settings import packaged_sandboxd

ROOT = Path(__file__).parents[2]
UID = 65532
"""Who the service runs as."""
SUITE, PYTHON = "bookworm", "3.11"
_RECIPE = "1"
"""Raised whenever the same inputs would give other files."""
_KEPT = 4
_PACKAGES = ("ca-certificates", "python3", "skopeo")
_UNWANTED = ("doc", "info", "locale", "man")
_LIBRARY = f"usr/local/lib/python{PYTHON}/dist-packages"
_START = "#!/usr/bin/python3\nfrom orchard.cli.entry import run\n\nrun()\n"
_LEFT_OUT = ("bin", ".lock", "orchard/sandbox/bin", "*.dist-info/RECORD", "*.dist-info/*.json")
"""Commands of dependencies, none of which the service uses; the daemon, which has an image of its own; and what tells
of the machine that installed it."""
_CONFIG: dict[str, Any] = {
    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/tmp", "PYTHONUNBUFFERED=1"],
    "User": f"{UID}:{UID}", "WorkingDir": "/tmp",
    "Entrypoint": ["orchard"], "Cmd": ["serve", "--backend", "kubernetes", "--host", "0.0.0.0"],
    "ExposedPorts": {"8420/tcp": {}},
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """An image in the cache."""

    name: str
    layout: Path
    digest: str
    """Of its manifest."""

    @property
    def tag(self) -> str:
        """The tag it is pushed under beside the version: it tells the content."""
        return self.digest.removeprefix("sha256:")[:16]


def build(cache: Path | None = None) -> dict[str, Built]:
    """Return both images; what the cache lacks is made (two minutes for all, a second for Orchard alone).

    Raises:
        MachineUnfit: a tool is missing or failed, with its words.
    """
    folder = (cache or cache_dir()) / "deploy"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        found = {built.name: built for built in (_sandboxd(folder), _service(folder))}
        _forget(folder)
    return found


def push(built: Built, registry: str, tag: str, *, plain: bool = False) -> str:
    """Push by skopeo, with the credentials that skopeo finds; return the reference ``REGISTRY/NAME:TAG``."""
    reference = f"{registry}/{built.name}:{tag}"
    copy = ("skopeo", "--insecure-policy", "copy", "--quiet", f"--dest-tls-verify={str(not plain).lower()}")
    _run([*copy, f"oci:{built.layout}:latest", f"docker://{reference}"])
    return reference


def version() -> str:
    """Return Orchard's version, which images are tagged with."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _sandboxd(folder: Path) -> Built:
    binary = packaged_sandboxd()
    layout = folder / f"sandboxd-{_key([_digest(binary)])}"
    if not layout.exists():
        with _draft(folder) as draft:
            written = write_daemon_image(binary, draft / "plain")
            copy = ("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-compress")
            _run([*copy, written, f"oci:{draft}/layout:latest"])
            (draft / "layout").rename(layout)
    return _built("orchard-sandboxd", layout)


def _service(folder: Path) -> Built:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = sorted([*project["dependencies"], *project["optional-dependencies"]["kubernetes"]])
    sources = [path for path in sorted((ROOT / "src" / "orchard").rglob("*")) if _is_source(path)]
    sources += [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    facts = [f"{path.relative_to(ROOT)} {_digest(path)}" for path in sources]
    keys = {
        "debian": _key([_RECIPE, SUITE, ARCHITECTURE, *_PACKAGES]),
        "libraries": _key([_RECIPE, PYTHON, ARCHITECTURE, *wanted, (ROOT / "constraints.txt").read_text()]),
        "orchard": _key([_RECIPE, PYTHON, *facts]),
    }
    layers = [
        cached_layer(folder, f"debian-{keys['debian']}", _debian),
        cached_layer(folder, f"libraries-{keys['libraries']}", lambda tar: _libraries(wanted, tar)),
        cached_layer(folder, f"orchard-{keys['orchard']}", _orchard),
    ]
    layout = folder / f"service-{_key([*keys.values(), json.dumps(_CONFIG)])}"
    if not layout.exists():
        with _draft(folder) as draft:
            write_image(draft / "layout", layers, _CONFIG, ARCHITECTURE)
            (draft / "layout").rename(layout)
    return _built("orchard-service", layout)


def _debian(tar: Path) -> None:
    mode = "root" if os.getuid() == 0 else "unshare"
    clean = '--customize-hook=rm -rf "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/var/cache/* "$1"/var/log/*'
    options = [f"--mode={mode}", "--variant=essential", "--skip=output/dev", f"--include={','.join(_PACKAGES)}", clean]
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
    _run(["mmdebstrap", "--quiet", *options, SUITE, str(tar)], SOURCE_DATE_EPOCH="0")


def _libraries(wanted: Sequence[str], tar: Path) -> None:
    with _draft(tar.parent) as draft:
        _install(draft / _LIBRARY, ["--constraints", str(ROOT / "constraints.txt"), *wanted])
        pack(draft, tar)


def _orchard(tar: Path) -> None:
    with _draft(tar.parent) as wheels, _draft(tar.parent) as draft:
        uv = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(ROOT)]
        _run(uv, SOURCE_DATE_EPOCH="315532800")  # the first second that a zip archive can tell
        _install(draft / _LIBRARY, ["--no-deps", *map(str, wheels.glob("*.whl"))])
        start = draft / "usr" / "local" / "bin" / "orchard"
        start.parent.mkdir(parents=True)
        start.write_text(_START)
        start.chmod(0o755)
        pack(draft, tar)


def _install(library: Path, what: Sequence[str]) -> None:
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--only-binary=:all:", "--no-installer-metadata"]
    _run([*uv, "--target", str(library), "--python-version", PYTHON, *what])
    for pattern in _LEFT_OUT:
        for path in library.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _compile(library)


def _compile(library: Path) -> None:
    """Compile beforehand, since the root is read-only; the code is trusted whatever the times of the files."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(library, quiet=2, stripdir=library, prependdir="/" + _LIBRARY, invalidation_mode=mode)


def _forget(folder: Path) -> None:
    """Remove all but the last few of each kind."""
    for kind in ("debian-*", "libraries-*", "orchard-*", "sandboxd-*", "service-*"):
        for path in sorted(folder.glob(kind), key=lambda path: path.stat().st_mtime)[: -2 * _KEPT]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc" and path.name != "sandboxd"


def _built(name: str, layout: Path) -> Built:
    layout.touch()  # in use
    index = json.loads((layout / "index.json").read_text())
    return Built(name, layout, str(index["manifests"][0]["digest"]))


def _key(facts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(facts)).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(argv: Sequence[str], **env: str) -> None:
    try:
        done = subprocess.run(argv, env={**base_env(), **env}, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MachineUnfit(
            f"{argv[0]} is missing, and images are made with it", hint="scripts/setup cluster"
        ) from error
    if done.returncode:
        raise MachineUnfit(f"`{' '.join(argv)[:200]}` failed: {done.stderr.strip()[-1000:]}")


@contextmanager
def _draft(folder: Path) -> Generator[Path]:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".draft-") as name:
        yield Path(name)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _main() -> None:
    parser = argparse.ArgumentParser(description="Build Orchard's images; with REGISTRY push them too.")
    parser.add_argument("registry", nargs="?", help="where to, e.g. ghcr.io/you; asked with skopeo's credentials")
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    parser.add_argument("--tag", default=version())
    given = parser.parse_args()
    for built in build().values():
        sys.stdout.write(f"{built.name}  {built.digest}  oci:{built.layout}:latest\n")
        if given.registry:
            sys.stdout.write(f"pushed {push(built, given.registry, given.tag, plain=given.plain_http)}\n")


if __name__ == "__main__":
    _main()
