"""A vLLM server as a process of ours: started, killed, started again on the same port."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from orchard.core.config import base_env

CONTEXT = 4096
_START_SECONDS = 600.0
_OPTIONS = (
    "--host", "127.0.0.1", "--served-model-name", "smol", "--dtype", "float32", "--max-model-len", str(CONTEXT),
    "--enforce-eager", "--max-num-seqs", "8", "--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details",
    "--enable-lora", "--max-lora-rank", "8",
)  # fmt: skip
_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


def _free_port() -> int:
    """Return a port that is free, and that the kernel gives to no connection while the server is started or is away."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in random.sample([port for port in range(10_000, 65_000) if not first <= port <= last], 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class VllmServer:
    """``vllm serve`` with one model.

    Args:
        program: vLLM's.
        model: folder.
        log: file for what it says.
    """

    def __init__(self, program: Path, model: Path, log: Path) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._argv = [program, "serve", model, "--port", str(self.port), *_OPTIONS]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return at once."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, env={**base_env(), **_SETTINGS}, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Return when it answers; fails with what it said if it ends before."""
        assert self._process is not None
        until = time.monotonic() + _START_SECONDS
        while not self._healthy():
            code = self._process.poll()
            assert code is None, f"vLLM ended with {code}:\n{self._log.read_text()[-3000:]}"
            assert time.monotonic() < until, f"vLLM did not start:\n{self._log.read_text()[-3000:]}"
            time.sleep(0.5)

    def kill(self) -> None:
        """End it and all its children, and return when nothing of it is left."""
        if self._process is None:
            return
        group = self._process.pid
        os.killpg(group, signal.SIGKILL)
        self._process.wait()
        self._process = None
        until = time.monotonic() + 30
        while time.monotonic() < until:  # its children are not ours to wait for
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)

    def models(self) -> list[str]:
        """Return the names of the model and of the adapters that it has."""
        with urllib.request.urlopen(self.url + "/v1/models", timeout=10) as answer:
            return [model["id"] for model in json.load(answer)["data"]]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
