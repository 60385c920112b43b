"""A Python package in an environment of its own, made once, keyed by version, in the cache folder."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchard.core.config import base_env, cache_dir
from orchard.core.errors import MachineUnfit
from orchard.harness.layers import python_here


@dataclass(frozen=True)
class Environment:
    """One package at one version, with all that it needs."""

    package: str
    version: str
    constraints: Path
    """The versions of all that it needs."""
    more: tuple[str, ...] = ()
    """Further requirements."""
    least: tuple[int, int] = (3, 11)
    """The oldest Python that it runs on; where this one is older, the tool layer's is taken."""

    @property
    def python(self) -> Path:
        """The interpreter of the environment; it exists once ``install`` has returned."""
        return self._folder / "bin" / "python"

    @property
    def installed(self) -> bool:
        """Whether it is complete; what its interpreter links to may have been cleared away."""
        return (self._folder / "complete").is_file() and self.python.exists()

    async def install(self) -> None:
        """Make the environment unless it is complete; any number of processes may call this at once.

        Raises:
            MachineUnfit: it could not be made; the message holds the installer's last words.
        """
        if self.installed:
            return
        folder = self._folder
        done = folder / "complete"
        folder.parent.mkdir(parents=True, exist_ok=True)
        async with _locked(folder.with_name(f"{folder.name}.lock")):
            if not self.installed:
                base = Path(sys.executable) if self._fits else await python_here()
                shutil.rmtree(folder, ignore_errors=True)  # a half-made one of a process that was killed
                for argv in self._steps(folder, base):
                    await self._checked(argv)
                done.write_text(self.version)

    @property
    def _folder(self) -> Path:
        python = f"py{sys.version_info.major}{sys.version_info.minor}" if self._fits else "pylayer"
        return cache_dir() / "harness" / f"{self.package}-{self.version}-{python}"

    @property
    def _fits(self) -> bool:
        """Whether it runs on the interpreter of this process."""
        return sys.version_info[:2] >= self.least

    def _steps(self, folder: Path, base: Path) -> Iterator[Sequence[str]]:
        packages = [f"{self.package}=={self.version}", *self.more, "-c", str(self.constraints)]
        if uv := shutil.which("uv"):
            yield [uv, "venv", "-q", "--python", str(base), str(folder)]
            yield [uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(self.python), *packages]
        else:
            yield [str(base), "-m", "venv", str(folder)]
            yield [str(self.python), "-m", "pip", "install", "-q", *packages]

    async def _checked(self, argv: Sequence[str]) -> None:
        process = await asyncio.create_subprocess_exec(
            *argv, env=base_env(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            words = output.decode("utf-8", "replace")[-1000:]
            hint = f"check that a package index is reachable: `uv pip install {self.package}=={self.version}` must work"
            raise MachineUnfit(f"{self.package} {self.version} could not be installed: {words}", hint=hint)


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
