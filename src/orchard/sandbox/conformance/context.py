"""What a check works with: the backend under test, its images, and faults to inject."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from orchard.core.config import base_env
from orchard.sandbox.box import Sandbox
from orchard.sandbox.conformance import host
from orchard.sandbox.conformance.faulty import Fault, Faulty, disturbing, faulty_backend
from orchard.sandbox.conformance.registry import Registry, serve
from orchard.sandbox.orchard import Orchard

HEED_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A process that was started in the background of a shell ignores SIGINT, and so would its children."""


class NotHeld(AssertionError):
    """The behaviour does not hold; the text says what was seen."""


class NotApplicable(Exception):
    """The check cannot be made here; the text says what is missing."""


@dataclass
class Context:
    """The backend under test and what the checks need beside it."""

    orchard: Orchard
    image: str
    """The default image: a shell and the core utilities at least."""
    connect: Callable[[], Orchard]
    """Makes another client of the same backend."""
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    """Special images by kind; see ``roots.special_images``."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment under which another process reaches the same backend: ``ORCHARD_URL`` …, or ``ORCHARD_HOME``."""
    home: Path | None = None
    """The local backend's folder, where its machine is this one: leaks are looked for there."""
    service_url: str | None = None
    """Where the backend is a service."""

    @property
    def patience(self) -> float:
        """Times longer than here that what only ends a hang may take: how busy machines elsewhere are nobody sees."""
        return 1.0 if self.home is not None else 4.0

    @asynccontextmanager
    async def box(self, **spec: Any) -> AsyncGenerator[Sandbox]:
        """A fresh sandbox of the default image, owned for the length of the block."""
        image = spec.pop("image", self.image)
        spec.setdefault("labels", {"orchard.conformance": "1"})
        async with self.orchard.sandbox(image, **spec) as box:
            yield box

    def special(self, kind: str) -> str:
        """Return the image of ``kind``.

        Raises:
            NotApplicable: none was given.
        """
        if kind not in self.images:
            raise NotApplicable(
                f"no {kind!r} image that the backend can have: --special {kind}=REFERENCE names one"
                " (made here where busybox-static is installed and the backend may read this machine's files)"
            )
        return self.images[kind]

    def another(self) -> Orchard:
        """Return a second client of the same backend, to be used as a block."""
        return self.connect()

    @asynccontextmanager
    async def faulty(
        self, box: Sandbox, *, cut_after: tuple[int, int] = (0, 600), heal: bool = True
    ) -> AsyncGenerator[tuple[Sandbox, Faulty]]:
        """The same sandbox, attached to through a proxy that cuts, delays and answers 502; and the proxy."""
        async with self._through_proxy(box, disturbing(cut_after, heal=heal)) as pair:
            yield pair

    @asynccontextmanager
    async def cuttable(self, box: Sandbox) -> AsyncGenerator[tuple[Sandbox, Callable[[], None]]]:
        """The same sandbox through a proxy that works, and a function that cuts all its connections."""
        async with self._through_proxy(box, disturbing(None)) as (attached, proxy):
            yield attached, proxy.cut_all

    @asynccontextmanager
    async def _through_proxy(
        self, box: Sandbox, choose: Callable[[int], Fault]
    ) -> AsyncGenerator[tuple[Sandbox, Faulty]]:
        backend = self.orchard.backend
        target = (await backend.endpoint(box.id)).base
        if target.startswith("https:"):
            raise NotApplicable("the fault proxy does not speak TLS")
        if not target.startswith("unix:"):
            parts = urlsplit(target)
            target = f"{parts.scheme}://{parts.netloc}"
        async with AsyncExitStack() as stack:
            faulty, proxy = await stack.enter_async_context(faulty_backend(backend, target, choose))
            orchard = await stack.enter_async_context(Orchard(backend=faulty))
            yield await orchard.attach(box.id), proxy

    async def python(self, code: str) -> asyncio.subprocess.Process:
        """Start another Python process that reaches the same backend and runs ``code``."""
        env = {name: value for name, value in base_env().items() if not name.startswith("ORCHARD_")}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", HEED_SIGINT + code, env={**env, **self.env}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    @contextmanager
    def folder(self) -> Generator[Path]:
        """A folder on this machine for the length of the block."""
        with tempfile.TemporaryDirectory(prefix="orchard-") as path:
            yield Path(path)

    async def timed(self, awaitable: Awaitable[object]) -> float:
        """Return the seconds that ``awaitable`` takes."""
        start = time.monotonic()
        await awaitable
        return time.monotonic() - start

    def new_key(self) -> str:
        """Return a fresh word that serves as key and as label value."""
        return "k" + secrets.token_hex(8)

    async def traces(self, sandbox_id: str) -> list[str]:
        """Return what this machine still shows of a sandbox: processes, mounts, cgroups, files.

        Raises:
            NotApplicable: the backend's machine is another one.
        """
        if self.home is None:
            raise NotApplicable("the backend's machine is not this one")
        return await asyncio.to_thread(host.traces, sandbox_id, self.home)

    async def kill_daemon(self, sandbox_id: str) -> None:
        """Kill -9 the main process of a sandbox from outside.

        Raises:
            NotApplicable: the backend's machine is another one.
        """
        if self.home is None:
            raise NotApplicable("the backend's machine is not this one")
        for pid in await asyncio.to_thread(host.main_processes, sandbox_id):
            os.kill(pid, 9)

    def host_has(self, path: str) -> bool:
        """Return whether this machine has a file at ``path``."""
        return Path(path).exists()

    def host_address(self) -> str:
        """Return an address of this machine that is not loopback; a sandbox without network must not reach it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing: asks the routing table only
                return str(probe.getsockname()[0])
            except OSError:
                return "192.0.2.1"

    async def get(self, path: str) -> int:
        """GET ``path`` of the service; return the status.

        Raises:
            NotApplicable: the backend is no service.
        """
        if self.service_url is None:
            raise NotApplicable("the backend is no service")
        return await self.fetch(self.service_url + path)

    async def fetch(self, url: str) -> int:
        """GET ``url`` over a connection of its own; return the status."""
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            await response.read()
            return response.status

    @asynccontextmanager
    async def registry(self, kind: str | None, *, delay: float = 0.0, private: bool = False) -> AsyncGenerator[str]:
        """A registry on loopback; yields a reference to the image of ``kind`` in it, or to none.

        Raises:
            NotApplicable: the backend's machine is another one, so it cannot reach this loopback.
        """
        if self.home is None:
            raise NotApplicable("the backend's machine is not this one, and does not reach a registry here")
        layout = Path(self.special(kind).removeprefix("oci:").removesuffix(":1")) if kind else None
        async with serve(Registry(layout, delay=delay, private=private)) as address:
            yield f"docker://{address}/library/probe:1"
