"""Preparing: dependencies resolved on this machine, installed offline in a build sandbox, its layer made an image.

Whoever works on the task later starts from that image's digest, without network.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchard.core.errors import CommandNotStarted, CreateFailed, TaskRefused
from orchard.core.scratch import publish
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.pinned import pinned
from orchard.tasks.boxes import put_tree
from orchard.tasks.cache import alternatives, keep, place
from orchard.tasks.tree import SourceFile, Tree, as_tar, read_tree
from orchard.tasks.uv import Platform, installed

RECIPE = 3
"""Version of what is done here; part of every key, so that a change makes new images."""
VENV = "/opt/venv"
_BUILD_SECONDS = 600.0
_PROBE = (
    "import json,os,platform,sys\n"
    "libc='-'.join(platform.libc_ver()) if platform.libc_ver()[0] else 'musl'\n"
    "print(json.dumps(['%d.%d' % sys.version_info[:2], platform.machine(), libc]))\n"
)
_WRAPPED = ("python", "python3", "pip", "pytest")
_IGNORED = "__pycache__/\n*.pyc\n.pytest_cache/\n*.egg-info/\nbuild/\n"
_GIT = (
    "command -v git >/dev/null || exit 0\n"
    "export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'\n"
    "git init -q -b main . && cat > .git/info/exclude && git add -A"
    ' && git -c user.name=orchard -c user.email=orchard@localhost commit -q --no-verify -m "$MESSAGE"'
    " && git gc -q"
)


@dataclass(frozen=True)
class Recipe:
    """All that goes into a prepared image."""

    base: str
    """The image it stands on, by digest where it has one."""
    workdir: str
    tree: Tree = field(repr=False)
    """What lies in ``workdir``; empty: the base's own."""
    title: str
    """Of the one commit, where the image has git."""
    lock: str | None = field(default=None, repr=False)
    """Python packages for ``/opt/venv``; None: no environment is made."""
    platform: Platform | None = None
    editable: bool = False
    """Install the tree in development mode into ``/opt/venv``."""
    setup: Sequence[str] = ()
    """Shell commands, run last in ``workdir``."""

    def key(self) -> str:
        """Return a hash of everything above and of what this module does with it."""
        facts = [
            RECIPE, _digest_in(self.base), self.workdir, hashlib.sha256(as_tar(self.tree)).hexdigest(), self.title,
            self.lock, str(self.platform), self.editable, list(self.setup),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def image_name(task: str, recipe: Recipe) -> str:
    """Return a name for the image of a task, for people; of its id what names of images may hold."""
    return f"orchard/{re.sub('[^a-z0-9]+', '-', task.lower()).strip('-')}:{recipe.key()[:12]}"


async def base_digest(orchard: Orchard, image: str) -> str:
    """Return ``image`` by its digest (``pinned``), fetched if needed, or ``image`` itself where it has none.

    Raises:
        CreateFailed: there is no such image.
    """
    return pinned(image, await orchard.backend.resolve_image(image))


def _digest_in(image: str) -> str:
    return image.rpartition("@")[2]


async def probe(orchard: Orchard, image: str) -> Platform:
    """Return what Python an image has; remembered by the image's digest.

    Raises:
        TaskRefused: it has none; reason ``install_failed``.
    """
    remembered = place("platforms", _digest_in(image))
    if not remembered.exists() or "sha256:" not in image:
        async with orchard.sandbox(image) as box:
            try:
                result = await box.run(["python3", "-c", _PROBE], timeout=60)
            except CommandNotStarted as error:
                raise TaskRefused(
                    f"image {image} has no python3", reason="install_failed",
                    hint="give an image with python3 and git",
                ) from error  # fmt: skip
        publish(remembered, result.check().stdout)
    return Platform(*json.loads(remembered.read_text()))


async def recall(orchard: Orchard, folder: Path) -> tuple[str, bytes] | None:
    """Return digest and data of what ``remember`` kept for an image that this backend still has."""
    for path in await asyncio.to_thread(alternatives, folder):
        digest = f"sha256:{path.name}"
        try:
            await orchard.backend.resolve_image(digest)
        except CreateFailed as error:
            if error.reason != "image_not_found":
                raise
            continue
        return digest, await asyncio.to_thread(path.read_bytes)
    return None


def remember(folder: Path, digest: str, data: bytes = b"") -> None:
    """Keep ``data`` beside the digest of the image it goes with: several stores of images may share one cache."""
    keep(folder, digest.removeprefix("sha256:"), data)


async def build(orchard: Orchard, recipe: Recipe, name: str) -> str:
    """Make the image and return its digest; ``name`` is an extra name for people.

    Raises:
        TaskRefused: something in it cannot be installed; reason ``install_failed``, ``detail`` the log.
        OrchardError: infrastructure trouble; nothing is left.
    """
    site = await installed(recipe.lock, recipe.platform) if recipe.lock and recipe.platform else None
    async with orchard.sandbox(recipe.base, ttl=2 * _BUILD_SECONDS, network="none") as box:
        if site is not None and recipe.platform is not None:
            await _environment(box, site, recipe.platform)
        if recipe.tree:
            await put_tree(box, recipe.tree, recipe.workdir)
        if recipe.editable:
            options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--quiet"]
            install = [f"{VENV}/bin/python", "-m", "pip", "install", *options, "-e", "."]
            await _step(box, install, recipe.workdir, PYTHONDONTWRITEBYTECODE="1")
        for command in recipe.setup:
            await _step(box, command, recipe.workdir)
        if recipe.tree:
            await _step(box, _GIT, recipe.workdir, _IGNORED.encode(), MESSAGE=recipe.title)
        return await box.commit(name)


async def _environment(box: Sandbox, site: Path, platform: Platform) -> None:
    await _step(box, ["python3", "-m", "venv", "--without-pip", VENV], "/")
    files = await asyncio.to_thread(read_tree, site)
    packages: dict[str, SourceFile] = {}
    for path, file in files.items():
        if path.startswith("bin/"):
            packages[path] = SourceFile(_for_venv(file.data), True)
        else:
            packages[f"lib/python{platform.python}/site-packages/{path}"] = file
    await put_tree(box, packages, VENV)
    wrappers = {name: SourceFile(f'#!/bin/sh\nexec {VENV}/bin/{name} "$@"\n'.encode(), True) for name in _WRAPPED}
    await put_tree(box, wrappers, "/usr/local/bin")
    # Compiles pytest once for all runs to come; an environment without it is none the worse.
    await box.run([f"{VENV}/bin/python", "-m", "pytest", "--version"], cwd="/", timeout=_BUILD_SECONDS)


def _for_venv(script: bytes) -> bytes:
    """Return a script whose first line names the environment's Python instead of this machine's."""
    first, newline, rest = script.partition(b"\n")
    return f"#!{VENV}/bin/python".encode() + newline + rest if first.startswith(b"#!") else script


async def _step(box: Sandbox, command: str | Sequence[str], cwd: str, stdin: bytes | None = None, **env: str) -> None:
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", **env}
    try:
        result = await box.run(command, cwd=cwd, timeout=_BUILD_SECONDS, merge=True, stdin=stdin, env=settings)
    except CommandNotStarted as error:
        raise TaskRefused(f"set-up cannot run {command!r}: {error}", reason="install_failed") from error
    if not result.ok:
        end = "did not end in time" if result.timed_out else f"ended with {result.signal or result.exit_code}"
        raise TaskRefused(
            f"set-up step {command!r} {end}: {result.text[-1000:]}", reason="install_failed", detail=result.text
        )
