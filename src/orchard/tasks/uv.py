"""Packages from the machine's own package index, by uv, resolved for the Python of an image.

Index addresses, proxies, certificates and credentials are whatever this machine is set up for: uv's own settings, and
pip's where uv has none.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import os
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchard.core.config import base_env, env
from orchard.core.errors import MachineUnfit, TaskRefused, Unavailable
from orchard.core.scratch import publish
from orchard.tasks.cache import place
from orchard.tasks.model import requirement

_UNSATISFIABLE = 1  # uv's exit code where the index answered and no solution exists; 2 is any other trouble
_PIP_TO_UV = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}


@dataclass(frozen=True)
class Platform:
    """The Python of an image."""

    python: str
    """``3.11``."""
    machine: str
    """``x86_64``, ``aarch64``."""
    libc: str
    """``glibc-2.36``, ``musl``."""

    def arguments(self) -> list[str]:
        """Return the options that make uv resolve and install for it, wheels only: nothing is built on this machine."""
        if not self.libc.startswith("glibc"):
            triple = f"{self.machine}-unknown-linux-musl"
        else:
            triple = f"{self.machine}-manylinux{'_2_28' if self._glibc() >= (2, 28) else '2014'}"
        return ["--python-version", self.python, "--python-platform", triple, "--only-binary", ":all:"]

    def _glibc(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.libc.partition("-")[2].split(".") if part.isdigit())


@dataclass(frozen=True)
class Request:
    """What to resolve."""

    requirements: Sequence[str]
    platform: Platform
    uploaded_before: datetime | None = None
    """Only releases of that time: what the library was tested with. None: the newest."""
    without: str | None = None
    """The library under repair: it takes part in the resolution, and is never installed."""


async def locked(request: Request) -> str:
    """Return a lock (``pylock.toml``) of everything needed: exact versions, addresses, hashes. Cached by the request.

    Raises:
        TaskRefused: no set of wheels satisfies the requirements; reason ``dependencies``.
        Unavailable: the index cannot be reached.
    """
    try:
        text = "".join(f"{requirement(line)}\n" for line in request.requirements)
    except ValueError as error:  # of a library's own files; ours are checked when they are read
        raise TaskRefused(str(error), reason="dependencies") from error
    arguments = ["pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml", *request.platform.arguments()]
    if request.uploaded_before is not None:
        arguments += ["--exclude-newer", request.uploaded_before.isoformat()]
    if request.without is not None:
        arguments += ["--no-emit-package", request.without]
    cached = place("packages/locks", f"{arguments}\n{text}")
    if not cached.exists():
        lock = await run_uv([*arguments, "-"], stdin=text.encode())
        publish(cached, lock)
    return cached.read_text()


async def latest_facts(requirement: str) -> Mapping[str, Any]:
    """Return the lock entry of one requirement (``name==version``), with its ``sdist`` where there is one.

    Raises:
        TaskRefused: the index has no such release; reason ``no_sdist``.
        Unavailable: the index cannot be reached.
    """
    arguments = ["pip", "compile", "--quiet", "--no-header", "--no-deps", "--format", "pylock.toml"]
    arguments += ["--python-version", f"{sys.version_info[0]}.{sys.version_info[1]}", "-"]
    try:
        lock = await run_uv(arguments, stdin=requirement.encode())
    except TaskRefused as error:
        raise TaskRefused(f"the index has no {requirement}", reason="no_sdist", detail=error.detail) from error
    return tomllib.loads(lock.decode())["packages"][0]


async def installed(lock: str, platform: Platform) -> Path:
    """Return a folder with everything of ``lock``, laid out as a ``site-packages``, with scripts in ``bin``.

    Made once for each lock and kept in the cache; hashes are checked. Nothing in it was run.

    Raises:
        Unavailable: a file cannot be fetched.
    """
    folder = place("packages/environments", f"{platform}\n{lock}")
    if folder.exists():
        return folder
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.{id(lock):x}")
    scratch.mkdir(parents=True)
    try:
        lock_file = scratch / "pylock.toml"
        await asyncio.to_thread(lock_file.write_text, lock)
        target = scratch / "site"
        options = ["--quiet", "--no-deps", "--link-mode", "copy", *platform.arguments()]
        await run_uv(["pip", "install", *options, "--target", str(target), "-r", str(lock_file)])
        try:
            target.rename(folder)
        except OSError:  # another process was quicker with the same content
            if not folder.exists():
                raise
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
    return folder


def names_in(lock: str) -> set[str]:
    """Return the normalised names of the distributions that ``lock`` installs."""
    return {canonical(package["name"]) for package in tomllib.loads(lock).get("packages", [])}


def canonical(name: str) -> str:
    """Return a distribution's name in its normal form: lower case, runs of ``-_.`` as one ``-``."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)


async def run_uv(arguments: Sequence[str], *, stdin: bytes = b"") -> bytes:
    """Run uv and return its stdout.

    Raises:
        TaskRefused: what was asked for cannot be had; reason ``dependencies``, ``detail`` uv's words.
        Unavailable: any other trouble, mostly the network.
        MachineUnfit: there is no uv.
    """
    process = await asyncio.create_subprocess_exec(
        _program(), *arguments, env=dict(environment()),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await process.communicate(stdin)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return output
    words = errors.decode("utf-8", "replace").strip()
    if process.returncode == _UNSATISFIABLE:
        raise TaskRefused(f"packages cannot be had: {words[-1000:]}", reason="dependencies", detail=words)
    raise Unavailable(f"uv failed: {words[-1000:]}", hint="check the network and the package index that uv is set to")


def _program() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise MachineUnfit("uv is not installed", hint="pip install uv")
    return found


def environment() -> Mapping[str, str]:
    """Return the environment for uv: this process's, and pip's index settings where uv has none of its own."""
    result = dict(base_env())
    result["UV_NO_PROGRESS"] = "1"
    own = {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE"} & set(result)
    settings = _pip_settings()
    for key, name in _PIP_TO_UV.items():
        value = settings.get(key)
        if value and name not in result and (key == "cert" or not own):
            result[name] = " ".join(value.split())
    return result


def _pip_settings() -> Mapping[str, str]:
    """Return pip's global settings: files from the machine's to the user's, then ``PIP_*`` variables."""
    home = Path.home()
    files = [
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        home / ".config/pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    named = env("PIP_CONFIG_FILE")
    parser = configparser.RawConfigParser(strict=False)
    parser.read([*files, *([Path(named)] if named else [])])
    settings = dict(parser["global"]) if parser.has_section("global") else {}
    for key in _PIP_TO_UV:
        if value := env(f"PIP_{key.replace('-', '_').upper()}"):
            settings[key] = value
    return settings
