"""Installs mini-swe-agent once into an environment of its own, keyed by version, in the cache folder."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from orchard.core.config import base_env, cache_dir
from orchard.core.errors import MachineUnfit

VERSION = "2.4.6"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
_HINT = f"check that a package index is reachable: `uv pip install mini-swe-agent=={VERSION}` must work"


def python() -> Path:
    """Return the interpreter of the environment; it exists once ``install`` has returned."""
    return _folder() / "bin" / "python"


async def install() -> None:
    """Make the environment unless it is complete; any number of processes may call this at once.

    Raises:
        MachineUnfit: it could not be made; the message holds the installer's last words.
    """
    folder = _folder()
    done = folder / "complete"
    if done.is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    async with _locked(folder.with_suffix(".lock")):
        if not done.is_file():
            shutil.rmtree(folder, ignore_errors=True)  # a half-made one of a process that was killed
            for argv in _steps(folder):
                await _checked(argv)
            done.write_text(VERSION)


def _folder() -> Path:
    return cache_dir() / "harness" / f"mini-swe-agent-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"


def _steps(folder: Path) -> Iterator[Sequence[str]]:
    package = [f"mini-swe-agent=={VERSION}", "-c", str(CONSTRAINTS)]
    if uv := shutil.which("uv"):
        yield [uv, "venv", "-q", "--python", sys.executable, str(folder)]
        yield [uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(folder / "bin" / "python"), *package]
    else:
        yield [sys.executable, "-m", "venv", str(folder)]
        yield [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *package]


async def _checked(argv: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, env=base_env(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        words = output.decode("utf-8", "replace")[-1000:]
        raise MachineUnfit(f"mini-swe-agent {VERSION} could not be installed: {words}", hint=_HINT)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another process is installing; its end frees the lock
                await asyncio.sleep(0.2)
        yield
