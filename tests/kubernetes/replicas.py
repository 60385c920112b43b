"""Several ``orchard serve`` over one namespace, and one address that leads to any of them."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for
from tests.support.service import Served

from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.service.keys import KeyRing


class Front:
    """A TCP proxy that gives each connection to the next replica that takes it. ``url`` is the one address.

    Args:
        ports: of the replicas on loopback.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports, self._turn = ports, itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.open: dict[int, int] = dict.fromkeys(ports, 0)
        """Port -> connections that lead there now."""
        self.url = ""

    async def __aenter__(self) -> "Front":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass(reader, writer)
        except OSError:
            pass  # the replica has died: the client's connection breaks with it
        except asyncio.CancelledError:
            pass  # the front is closed; the server's own callback would log it
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._ports:
            port = self._ports[next(self._turn) % len(self._ports)]
            with suppress(ConnectionRefusedError):
                there, to = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            return
        self.open[port] += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, to))
                group.create_task(_copy(there, writer))
        except* OSError:
            pass
        finally:
            self.open[port] -= 1
            to.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    target.write_eof()


class Replicas:
    """Running services over one namespace; all know the same keys."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, count: int, **given: Any) -> None:
        self.cluster, self.namespace, self._folder = cluster, namespace, folder
        self._settings = folder / "kubernetes.toml"
        write_settings(self._settings, settings_for(cluster, namespace, **given))
        self._ring = KeyRing(folder / "keys.toml")
        self.key = self.new_key("default")
        self.services = [
            Served(
                folder,
                self._ring.path,
                folder / f"log-{number}",
                more=("--backend", "kubernetes"),
                key=self.key,
                patience=120,
            )
            for number in range(count)
        ]

    def new_key(self, name: str, **given: Any) -> str:
        """Return a key of a tenant of its own, which the services know within a second."""
        return self._ring.add(name, **given)

    def start(self) -> None:
        """Start those that do not run, each on the port that it had."""
        dead = [each for each in self.services if not hasattr(each, "process") or each.process.poll() is not None]
        with patch.dict(os.environ, {"ORCHARD_KUBERNETES": str(self._settings)}), ThreadPoolExecutor() as threads:
            list(threads.map(Served.start, dead))

    def kill(self, port: int) -> None:
        """kill -9 the service on ``port``."""
        next(each for each in self.services if each.port == port).end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop all that run."""
        for each in self.services:
            if hasattr(each, "process") and each.process.poll() is None:
                each.end()

    @property
    def front(self) -> Front:
        """A new front over all."""
        return Front([each.port for each in self.services])

    def door(self, number: int, key: str | None = None) -> Orchard:
        """Return a client of one service alone."""
        return Orchard(self.services[number].url, api_key=key or self.key)

    def pods(self) -> list[dict[str, Any]]:
        """Return the Pods of the namespace."""
        return self.cluster.get("-n", self.namespace, "pods")["items"]


@contextmanager
def replicas(cluster: Cluster, folder: Path, count: int, **given: Any) -> Generator[Replicas]:
    """Run ``count`` services over a namespace of their own."""
    with cluster.namespace() as namespace:
        running = Replicas(cluster, namespace, folder, count, **given)
        try:
            running.start()
            yield running
        finally:
            running.stop()


def write_settings(path: Path, settings: KubernetesSettings) -> None:
    """Write the file that ``ORCHARD_KUBERNETES`` names."""
    path.write_text("\n".join(_lines(asdict(settings))) + "\n")


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield TOML, one name a line; tables are written inline."""
    yield from (f"{name} = {_value(value)}" for name, value in facts.items() if value is not None)


def _value(value: Any) -> str:
    """Return a value as TOML writes it: texts, numbers and lists as JSON does."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)
