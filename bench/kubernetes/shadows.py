"""A live data path for simulated Pods: the sandboxd that no kubelet starts, as a process here, at the Pod's address."""

import json
import os
import subprocess
from pathlib import Path
from typing import IO

from bench.kubernetes.place import addressed
from orchard.core.errors import MachineUnfit
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.objects import Json, parts
from orchard.sandbox.kubernetes.pod import CONFIG_ENV, CONTAINER, PORT
from orchard.sandbox.local.cgroups import find_cgroups
from orchard.sandbox.local.settings import packaged_sandboxd

_GRACE = 20.0


class Shadows:
    """One sandboxd for each Pod that the cache knows to have an address; it ends with its Pod.

    Args:
        cache: follows the Pods.
        folder: for what the daemons keep.
    """

    def __init__(self, cache: PodCache, folder: Path) -> None:
        self._folder = folder / "shadows"
        self._folder.mkdir()
        self._log: IO[bytes] = (folder / "shadows.log").open("wb")
        self._binary = packaged_sandboxd()
        self._hierarchy, self._groups = _groups()
        self._groups.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: list[subprocess.Popen[bytes]] = []
        cache.listeners.append(self._see)

    @property
    def pids(self) -> list[int]:
        """Process ids of those that run."""
        return [each.pid for each in self._running.values()]

    def close(self) -> None:
        """End all, and remove what they had."""
        for uid in list(self._running):
            self._end(uid)
        for process in self._ended:
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for folder in (*self._groups.glob("*/*/"), *self._groups.glob("*/"), self._groups):
            folder.rmdir()
        self._log.close()

    def _see(self, old: Json | None, new: Json | None) -> None:
        pod = new or old
        assert pod is not None
        uid, address = str(pod["metadata"]["uid"]), addressed(pod) if new else None
        if address is None:
            self._end(uid)
        elif uid not in self._running:
            self._running[uid] = self._start(uid, pod, address)

    def _start(self, uid: str, pod: Json, address: str) -> subprocess.Popen[bytes]:
        state, group = self._folder / uid, self._groups / uid
        state.mkdir(mode=0o700)
        group.mkdir()
        held = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
        try:
            given = {"version": 2 if self._hierarchy == "unified" else 1, "fds": {self._hierarchy: held}}
            document = json.dumps(shadow_config(pod, address, str(state)) | {"cgroup": given})
            return subprocess.Popen(
                [self._binary, "--config-env", CONFIG_ENV], env={"PATH": os.defpath, CONFIG_ENV: document}, cwd=state,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log, pass_fds=[held],
            )  # fmt: skip
        finally:
            os.close(held)

    def _end(self, uid: str) -> None:
        process = self._running.pop(uid, None)
        if process is not None:
            process.terminate()
            self._ended.append(process)


def shadow_config(pod: Json, address: str, state: str) -> Json:
    """Return the configuration that the Pod gives its daemon, with the places of this machine in it."""
    container = next(each for each in parts(pod, "spec", "containers") if each["name"] == CONTAINER)
    text = next(each["value"] for each in container["env"] if each["name"] == CONFIG_ENV)
    return json.loads(text) | {"listen": {"tcp": f"{address}:{PORT}"}, "state_dir": state, "death_file": ""}


def _groups() -> tuple[str, Path]:
    """Return where each daemon gets a control group for its commands, as the local backend gives it: one hierarchy.

    Without, a daemon keeps four dozen threads in reserve: of a thousand daemons more than one machine may have.
    """
    found = find_cgroups()
    hierarchy = "unified" if found and found.version == 2 else "pids"
    if found is None or hierarchy not in found.bases:
        raise MachineUnfit("a thousand daemons need control groups here: run as root")
    return hierarchy, found.bases[hierarchy] / f"orchard-bench-{os.getpid()}"
