"""A real registry on loopback: Debian's ``docker-registry``, with its store in a folder of the test's own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "pusher", "let-me-pull"
_HASH = "$2b$04$8poX7AKApO4JkxZVXOrpLOTzoGjIiwUO8dADoiqhIH4hU1/YKzUXG"
"""bcrypt of the password."""
_SECONDS = 60.0


@dataclass(frozen=True)
class Registry:
    """A running registry that speaks plain HTTP."""

    at: str
    """``HOST:PORT``."""
    credentials: Path
    """A file of logins that opens it, as skopeo reads one."""

    def manifest(self, name: str, reference: str) -> dict[str, Any]:
        """Return a manifest; fails unless it is what the digest says by which it is asked for."""
        accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        raw = self._get(f"{name}/manifests/{reference}", accept)
        assert f"sha256:{sha256(raw).hexdigest()}" == reference
        return json.loads(raw)

    def blob(self, name: str, digest: str) -> bytes:
        """Return a blob."""
        return self._get(f"{name}/blobs/{digest}", {})

    def _get(self, path: str, headers: dict[str, str]) -> bytes:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(
            f"http://{self.at}/v2/{path}", headers={**headers, "Authorization": f"Basic {login}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextmanager
def registry(folder: Path, *, private: bool = False) -> Iterator[Registry]:
    """Run a registry whose store is in ``folder``; ``private`` asks for a login."""
    program = shutil.which("docker-registry")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("docker-registry is not installed (make setup-test)")
    folder.mkdir()
    at = f"127.0.0.1:{_free_port()}"
    config: dict[str, Any] = {
        "version": "0.1", "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}}, "http": {"addr": at},
    }  # fmt: skip
    (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    if private:
        config["auth"] = {"htpasswd": {"realm": "orchard", "path": str(folder / "htpasswd")}}
    (folder / "config.yaml").write_text(json.dumps(config))
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (folder / "auth.json").write_text(json.dumps({"auths": {at: {"auth": login}}}))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", folder / "config.yaml"], stdout=log, stderr=log)
    try:
        _wait(process, at, folder / "log")
        yield Registry(at, folder / "auth.json")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder / "store", ignore_errors=True)  # hundreds of megabytes, where it held a harness


def _free_port() -> int:
    """A port of which the kernel gives none away by itself: else a connection might have it before the registry."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(max(1024, lowest - 20_000), lowest), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports in a row are taken")


def _wait(process: subprocess.Popen[bytes], at: str, log: Path) -> None:
    until = time.monotonic() + _SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://{at}/v2/", timeout=10).close()
            return
        except urllib.error.HTTPError:  # it asks for a login
            return
        except OSError:
            assert process.poll() is None, f"docker-registry ended:\n{log.read_text()[-2000:]}"
            assert time.monotonic() < until, f"docker-registry does not answer:\n{log.read_text()[-2000:]}"
            time.sleep(0.05)
