"""Where the measurements happen: a throw-away home with its images, a service over it, contestants, runc bundles."""

import asyncio
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.frame import Batch
from orchard.harness.mini_swe_agent.environment import MINI_SWE_AGENT
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.local.powers import find_powers
from orchard.sandbox.local.rootfs import build_debian_image, import_tar

CONTESTANT = Path(__file__).with_name("contestant.py")
ORCHARD = (sys.executable, "-c", "from orchard.cli.main import run; run()")
PACKAGES = ("ca-certificates", "git", "python3")
_LINE = 1 << 24


class Contestant:
    """One process of contestant.py."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log
        self.peak = 0.0
        """Bytes by which its memory grew in the hungriest call so far."""

    async def ready(self) -> None:
        assert self._process.stdout is not None
        if await self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"a contestant did not start: {self._log.read_text()[-1500:]}")

    async def call(self, do: str, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant died at {do}: {self._log.read_text()[-1500:]}")
        answer = json.loads(line)
        self.peak = max(self.peak, answer["peak"])
        return answer

    def batch(self, do: str, **request: Any) -> Batch:
        """Return the operation as one that is done n times."""

        async def run(n: int) -> list[float]:
            return (await self.call(do, n=n, **request))["seconds"]

        return run

    def single(self, do: str, **request: Any) -> Batch:
        """Return the operation as one that is done once."""

        async def run(_: int) -> list[float]:
            return (await self.call(do, **request))["seconds"]

        return run

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


@dataclass
class Service:
    """A running ``orchard serve``."""

    process: asyncio.subprocess.Process
    url: str = ""
    key: str = ""

    @classmethod
    async def start(cls, folder: Path, env: Mapping[str, str], *more: str) -> "Service":
        """Start it on a free port of loopback; its keys and its log are in ``folder``."""
        log = folder / "service.log"
        with log.open("w") as errors:
            process = await asyncio.create_subprocess_exec(
                *ORCHARD, "serve", "--port", "0", "--keys", folder / "keys.toml", "--log-level", "warning", *more,
                env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        made = cls(process)
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode().strip()
            if text.startswith("API key"):
                made.key = text.rpartition(" ")[2]
            if text.startswith("serving"):
                made.url = text.split()[1]
                return made
        raise RuntimeError(f"the service did not start: {log.read_text()[-1500:]}")

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
        await self.process.wait()


class Place:
    """What a measurement gets. Everything made here is gone at the end.

    Args:
        quick: small sizes, the busybox root alone, and only the peers that are installed.
        debian: make the Debian root too, unless ``quick``.
    """

    def __init__(self, quick: bool, *, debian: bool = True) -> None:
        self.quick, self._with_debian = quick, debian and not quick
        self._stack = AsyncExitStack()
        self._remote: Orchard | None = None
        self._contestants: dict[str, Contestant | None] = {}

    async def __aenter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="orchard-bench-"))
        self._stack.push_async_callback(self._clear)
        self.work = self.home / "bench"
        self.work.mkdir(mode=0o755)
        self.home.chmod(0o755)
        settings = LocalSettings(home=self.home)
        self.backend = LocalBackend(settings)
        self.orchard = Orchard(backend=self.backend)
        self._stack.push_async_callback(self.orchard.close)
        self.busybox_root = await asyncio.to_thread(busybox_root_in, self.work / "busybox")
        self.busybox = await asyncio.to_thread(_import_folder, self.busybox_root, "busybox", settings)
        self.debian, self.debian_root = self.busybox, self.busybox_root
        if self._with_debian:
            self.debian = await asyncio.to_thread(build_debian_image, PACKAGES, settings=settings)
            layers = (self.home / "storage" / "overlay").glob("*/diff")
            self.debian_root = next(layer for layer in layers if (layer / "etc" / "debian_version").exists())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def contestant(self, name: str, *, fresh: bool = False) -> Contestant | None:
        """Return the process of ``floor``, ``mini-swe-agent`` or ``swe-rex``; None where it is not installed."""
        if fresh or name not in self._contestants:
            made = await self._start(name)
            if fresh:
                return made
            self._contestants[name] = made
        return self._contestants[name]

    async def floor(self) -> Contestant:
        found = await self.contestant("floor")
        assert found is not None
        return found

    async def peers(self, *names: str) -> dict[str, Contestant]:
        """Return the peers that can be had, by name; their peaks begin anew."""
        found = {name: await self.contestant(name) for name in names or ("mini-swe-agent", "swe-rex")}
        have = {name: peer for name, peer in found.items() if peer is not None}
        for peer in have.values():
            peer.peak = 0.0
        return have

    async def remote(self) -> Orchard:
        """Return a client of ``orchard serve``, which runs in a process of its own over the same home."""
        if self._remote is None:
            self._service = await Service.start(self.work, {"ORCHARD_HOME": str(self.home)})
            self._stack.push_async_callback(self._service.end)
            self._remote = Orchard(self._service.url, api_key=self._service.key)
            self._stack.push_async_callback(self._remote.close)
        return self._remote

    def bundle(self, name: str, root: Path, argv: Sequence[str]) -> dict[str, str] | None:
        """Write a bare runc bundle; return how to ask for it. None where runc needs more than this user may."""
        if os.getuid() != 0:
            return None
        folder, state = self.work / f"bundle-{name}", self.work / "runc"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(bare_spec(root, argv)))
        return {"bundle": str(folder), "state": str(state)}

    def daemon(self, sandbox_id: str) -> int | None:
        """Return the process id of a sandbox's sandboxd on this machine."""
        found = next(self.home.glob(f"sandboxes/{sandbox_id}/pid"), None)
        return int(found.read_text()) if found else None

    @property
    def service_pid(self) -> int | None:
        return self._service.process.pid if self._remote else None

    async def _start(self, name: str) -> Contestant | None:
        python = Path(sys.executable)
        if name == "mini-swe-agent":
            if not self.quick:
                await MINI_SWE_AGENT.install()
            python = MINI_SWE_AGENT.python
        module = {"mini-swe-agent": "minisweagent", "swe-rex": "swerex"}.get(name, "json")
        if not python.exists() or not await _has(python, module):
            return None
        log = self.work / f"{name}.log"
        quiet = {"MSWEA_SILENT_STARTUP": "1", "SWE_REX_LOG_STREAM_LEVEL": "ERROR"}
        with log.open("w") as errors:
            process = await asyncio.create_subprocess_exec(
                python, CONTESTANT, name, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                env={**os.environ, **quiet}, limit=_LINE,
            )  # fmt: skip
        made = Contestant(process, log)
        self._stack.push_async_callback(made.close)
        await made.ready()
        return made

    async def _clear(self) -> None:
        backend = LocalBackend(LocalSettings(home=self.home))
        if (self.home / "sandboxes").exists():
            for box in (await backend.list(limit=1000)).items:
                await backend.delete(box.id)
        await backend.close()
        await asyncio.to_thread(find_powers().remove_tree, self.home)


def bare_spec(root: Path, argv: Sequence[str]) -> dict[str, Any]:
    """Return the smallest OCI spec that isolates: namespaces, /proc and /dev, a read-only root, nothing else."""
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": list(argv), "env": ["PATH=/usr/bin:/bin"], "cwd": "/"},
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ],
        "linux": {"namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")]},
    }


def busybox_root_in(root: Path) -> Path:
    """Fill a folder that is not there yet with the smallest root that commands run in."""
    busybox = shutil.which("busybox") or "/bin/busybox"
    for name in ("bin", "dev", "proc"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("true", "sh", "dd", "sleep"):
        (root / "bin" / name).symlink_to("busybox")
    return root


def _import_folder(root: Path, name: str, settings: LocalSettings) -> str:
    tar = root.with_suffix(".tar")
    with tarfile.open(tar, "w") as archive:
        archive.add(root, arcname=".")
    return import_tar(tar, name, settings=settings)


async def _has(python: Path, module: str) -> bool:
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    process = await asyncio.create_subprocess_exec(python, "-c", find)
    return await process.wait() == 0
