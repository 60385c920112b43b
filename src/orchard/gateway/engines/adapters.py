"""Adapters on a server that takes them by name: the newest answers, an older one goes once no answer needs it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from orchard.gateway.engines.http import ModelServer
from orchard.gateway.errors import EngineRefused, EngineUnavailable

_log = logging.getLogger(__name__)


class Adapters:
    """Those that one engine gave to a vLLM server. A name is new each time: the server's prefix cache goes by it.

    Args:
        server: that has them.
    """

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.newest: str | None = None
        """Its name; None before the first."""
        self._uses = Counter[str | None]()
        """How many running answers each has."""
        self._old = set[str]()
        self._leaving = set[asyncio.Task[None]]()

    async def load(self, path: Path, version: str) -> None:
        """Let what is asked from now on be answered with the adapter in a folder on the server's machine.

        Raises:
            EngineUnavailable, EngineRefused: the server did not take it.
        """
        name = f"{version}-{token_hex(4)}"
        await self._server.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        if self.newest is not None:
            self._old.add(self.newest)
        self.newest = name
        self._let_go()

    @contextmanager
    def used(self) -> Generator[None]:
        """Keep the newest adapter while the block runs, which asks for an answer by it."""
        name = self.newest
        self._uses[name] += 1
        try:
            yield
        finally:
            self._uses[name] -= 1
            self._let_go()

    async def close(self) -> None:
        """Return when nothing is on its way to the server any more."""
        await asyncio.gather(*self._leaving)

    def _let_go(self) -> None:
        for name in [name for name in self._old if not self._uses[name]]:
            self._old.discard(name)
            task = asyncio.create_task(self._unload(name), name=f"unload {name}")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _unload(self, name: str) -> None:
        try:
            await self._server.call("/v1/unload_lora_adapter", {"lora_name": name})
        except EngineUnavailable as error:
            self._old.add(name)  # the next answer, or the next adapter, tries again
            _log.info("the adapter %s is not unloaded yet: %s", name, error)
        except EngineRefused as error:
            if error.http_status != 404:  # which says that it is gone: the server was started anew
                _log.warning("the adapter %s stays on the server: %s", name, error)
