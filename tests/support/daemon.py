"""A backend whose sandboxes are sandboxd run as an ordinary process: the real wire, without isolation."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchard.core.errors import NotFound, Unsupported
from orchard.core.ids import new_id
from orchard.sandbox.box import gone
from orchard.sandbox.protocol import Capabilities
from orchard.sandbox.transport import Call, Reply, Transport
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec, State

SANDBOXD = Path(__file__).parents[2] / "src/orchard/sandbox/bin/sandboxd"


class DaemonBackend:
    """Each sandbox is one sandboxd, with a work folder of its own that begins as a copy of ``template``.

    Args:
        folder: for sockets, state and work folders.
        template: what a fresh sandbox's workdir holds; it stands for the image.
        digest: the image's digest.
        workdir: one path for the work folder of all, as in an image; each is then a link that the newest one holds.
    """

    name = "daemon"

    def __init__(
        self, folder: Path, template: Path | None = None, digest: str | None = None, workdir: Path | None = None
    ) -> None:
        self._workdir, self._pid = workdir, os.getpid()  # only who started a process may ask whether it has ended
        self._folder, self._template, self._digest = folder, template, digest
        self._infos: dict[str, SandboxInfo] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.created = 0

    async def capabilities(self) -> Capabilities:
        return Capabilities()

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self.created += 1
        box_id, token = new_id("sb"), "token-of-the-test"
        home = self._folder / box_id
        (home / "state").mkdir(parents=True)
        work = home / "work"
        shutil.copytree(self._template, work, symlinks=True) if self._template else work.mkdir()
        self._lead_to(work)
        config = {
            "id": box_id, "token_sha256": hashlib.sha256(token.encode()).hexdigest(), "listen": {"fd": 3},
            "env": {"PATH": os.environ["PATH"], **spec.env}, "state_dir": str(home / "state"),
            "workdir": str(self._workdir or work),
            "lease": {
                "ttl_s": spec.ttl, "max_ttl_s": spec.max_ttl, "idle_s": spec.idle, "heartbeat_s": spec.heartbeat,
            },
        }  # fmt: skip
        address = home / "s"
        (home / "config.json").write_text(json.dumps(config))
        self._processes[box_id] = self._spawn(home, address)
        self.endpoints[box_id] = Endpoint(
            f"unix:{address}", "/v1", {"Orchard-Sandbox": box_id, "Authorization": f"Bearer {token}"}, box_id
        )
        now = datetime.now(UTC)
        self._infos[box_id] = SandboxInfo(
            box_id, State.READY, spec.image, self._digest, spec.labels, now, now + timedelta(seconds=spec.ttl),
            self.name, workdir=str(self._workdir or work),
        )  # fmt: skip
        return self._infos[box_id]

    @staticmethod
    def _spawn(home: Path, address: Path) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX) as listener, (home / "log").open("wb") as log:
            listener.bind(str(address))
            listener.listen(4096)
            number = listener.fileno()
            config = json.loads((home / "config.json").read_text())
            config["listen"] = {"fd": number}
            (home / "config.json").write_text(json.dumps(config))
            return subprocess.Popen(
                [str(SANDBOXD), "--config", str(home / "config.json")],
                pass_fds=(number,), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def get(self, sandbox_id: str) -> SandboxInfo:
        if sandbox_id not in self._infos:
            raise NotFound(f"no sandbox {sandbox_id}")
        info, process = self._infos[sandbox_id], self._processes[sandbox_id]
        if info.state is not State.GONE and self._pid == os.getpid() and process.poll() is not None:
            info = self._infos[sandbox_id] = self._ended(info, "signal")
        return info

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        return Page([info for info in self._infos.values() if info.state is not State.GONE])

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        info = await self.get(sandbox_id)
        if info.state is State.GONE:
            return
        process = self._processes[sandbox_id]
        process.terminate()
        await asyncio.to_thread(process.wait, 20)
        self._infos[sandbox_id] = self._ended(info, "deleted")
        if alive := (await self.list()).items:
            self._lead_to(self._folder / alive[-1].id / "work")

    def kill(self, sandbox_id: str) -> None:
        self._processes[sandbox_id].kill()
        self._processes[sandbox_id].wait()

    @staticmethod
    def _ended(info: SandboxInfo, reason: str) -> SandboxInfo:
        return replace(info, state=State.GONE, reason=reason, ended_at=datetime.now(UTC))

    def _lead_to(self, work: Path) -> None:
        if self._workdir is not None:
            self._workdir.unlink(missing_ok=True)
            self._workdir.symlink_to(work)

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        info = await self.get(sandbox_id)
        if info.state is State.GONE:
            raise gone(info)
        return self.endpoints[sandbox_id]

    async def commit(self, sandbox_id: str, name: str) -> str:
        raise Unsupported("an ordinary process has no image")

    async def resolve_image(self, image: str) -> str | None:
        return self._digest

    async def close(self) -> None:
        return


def start_unheard(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let no answer to the start of a command come back; return what is set once the sandbox has started one."""
    request, started = Transport.request, asyncio.Event()

    async def unanswered(self: Transport, call: Call) -> Reply:
        reply = await request(self, call)
        if (call.method, call.path) == ("POST", "/processes"):
            started.set()
            await asyncio.Event().wait()
        return reply

    monkeypatch.setattr(Transport, "request", unanswered)
    return started
