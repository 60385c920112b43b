"""``orchard serve`` as a real process over a local backend's home."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ORCHARD = [sys.executable, "-c", "from orchard.cli.main import run; run()"]


@dataclass
class Served:
    """A running service; ``kill`` and ``start`` again as a crash and a restart would."""

    home: Path
    keys: Path
    log: Path
    port: int = 0
    more: tuple[str, ...] = ()
    key: str = ""
    patience: float = 120.0
    """Seconds after which a start is taken to hang."""
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def start(self) -> None:
        argv = [*ORCHARD, "serve", "--port", str(self.port), "--keys", str(self.keys), *self.more]
        with self.log.open("ab") as log:
            env = {**os.environ, "ORCHARD_HOME": str(self.home)}
            self.process = subprocess.Popen(  # unbuffered: a line that was read ahead could not be waited for
                argv, env=env, stdout=subprocess.PIPE, stderr=log, bufsize=0
            )
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            line = self._line(deadline)
            if line.startswith("API key"):
                self.key = line.rpartition(" ")[2]
            if line.startswith("serving"):
                self.port = int(line.split()[1].rpartition(":")[2])
                return
        raise AssertionError(f"the service did not start: {self.log.read_text()}")

    def _line(self, deadline: float) -> str:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = self.process.stdout.readline().decode().strip() if readable else ""
        assert line, f"the service said nothing: {self.log.read_text()}"
        return line

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def served(home: Path, *more: str) -> Iterator[Served]:
    """Run ``orchard serve`` over ``home`` with a key of its own; stopped at the end, its sandboxes left to the home."""
    with tempfile.TemporaryDirectory(prefix="orchard-service-") as folder:
        service = Served(home, Path(folder) / "keys.toml", Path(folder) / "log", more=more)
        service.start()
        try:
            yield service
        finally:
            if service.process.poll() is None:
                service.end()
            elif service.process.stdout is not None:
                service.process.stdout.close()


@contextmanager
def running_service(home: Path) -> Iterator[tuple[str, str]]:
    """Yield (URL, key) of a service over ``home`` that accepts image files of this machine."""
    with served(home, "--allow-image-files") as service:
        yield service.url, service.key
