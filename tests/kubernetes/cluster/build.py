"""The programs of a cluster, built from Go modules once for each version, into the cache.

Each folder of ``programs`` is a Go module of its own (their client-go versions differ); its go.mod says which commands
at which versions, its go.sum makes them the same everywhere. One has no command but a file that comes with its module.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from tests.kubernetes.cluster.say import say

from orchard.core.config import base_env, cache_dir
from orchard.core.errors import MachineUnfit

SOURCES = Path(__file__).parent / "programs"
CACHE = cache_dir() / "cluster"
NAMES = ("etcd", "containerd", "kubernetes", "kube-router", "coredns", "kwok", "helm")
_FLAGS = ("-trimpath", "-buildvcs=false")
_TAGS = {"containerd": "no_btrfs,no_devmapper,no_zfs"}
_CALLED = {"server": "etcd"}
"""Go names a command after the last part of its path."""
_OPERATOR = "prometheus-operator"
_MONITOR = "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"
_RECIPE = "1"
"""Raised whenever the same sources would give other programs."""


@contextlib.contextmanager
def locked(name: str) -> Generator[None]:
    """Hold the machine's lock ``name``: two makes wait for each other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def one_crowd() -> contextlib.AbstractContextManager[None]:
    """Hold this while a hundred sandboxes are made at once: two nodes on two cores take one such crowd at a time."""
    return locked("a-hundred-pods")


def version(name: str) -> str:
    """Return the version of the module that ``name`` is built from, e.g. ``v1.34.4``."""
    module = json.loads(_go(name, "mod", "edit", "-json"))
    commands = [tool["Path"] for tool in module["Tool"]]
    if commands == [module["Module"]["Path"]]:  # a command of our own around what it requires directly
        return next(need["Version"] for need in module["Require"] if not need.get("Indirect"))
    owners = [need for need in module["Require"] if f"{commands[0]}/".startswith(f"{need['Path']}/")]
    return max(owners, key=lambda need: len(need["Path"]))["Version"]


def programs() -> Path:
    """Return the folder that holds every program; build what is missing (12 minutes of two cores, once).

    Raises:
        MachineUnfit: Go is missing or a build failed, with its words.
    """
    with locked("programs"):
        built = {name: _built(name) for name in NAMES}
        wanted = hashlib.sha256("".join(map(str, built.values())).encode()).hexdigest()[:12]
        together = CACHE / "programs" / f"all-{wanted}"
        if not together.exists():
            draft = Path(tempfile.mkdtemp(dir=CACHE, prefix=".all-"))
            for folder in built.values():
                for program in folder.iterdir():
                    (draft / program.name).symlink_to(program)
            draft.chmod(0o755)
            draft.rename(together)
    return together


def metrics_server() -> Path:
    """Return the folder that holds metrics-server, which few tests need: built where it is missing (two minutes, once).

    Raises:
        MachineUnfit: Go is missing or the build failed, with its words.
    """
    with locked("programs"):
        return _built("metrics-server")


def service_monitor() -> Path:
    """Return the definition of the kind ServiceMonitor, as the Prometheus operator's module has it (4 MB, once).

    Raises:
        MachineUnfit: Go is missing, or the module cannot be had.
    """
    with locked("programs"):
        folder = _place(_OPERATOR)
        if not folder.exists():
            _need_go()
            (need,) = json.loads(_go(_OPERATOR, "mod", "edit", "-json"))["Require"]
            module = json.loads(_go(_OPERATOR, "mod", "download", "-json", need["Path"]))
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=".build-") as draft:
                out = Path(draft) / "out"
                out.mkdir()
                shutil.copyfile(Path(module["Dir"]) / _MONITOR, out / "servicemonitor.yaml")
                folder.parent.mkdir(exist_ok=True)
                out.rename(folder)
    return folder / "servicemonitor.yaml"


def _place(name: str) -> Path:
    """Return the folder in which what is made of module ``name`` is kept."""
    digest = hashlib.sha256(json.dumps([_RECIPE, _FLAGS, _TAGS.get(name, "")]).encode())
    for file in sorted((SOURCES / name).iterdir()):
        digest.update(file.read_bytes())
    return CACHE / "programs" / f"{name}-{digest.hexdigest()[:12]}"


def _need_go() -> None:
    if not shutil.which("go"):
        raise MachineUnfit("Go is missing, and the cluster is built from source", hint="scripts/setup cluster")


def _built(name: str) -> Path:
    """Return the folder of the commands of module ``name``, built where it is missing."""
    folder = _place(name)
    if folder.exists():
        return folder
    _need_go()
    folder.parent.mkdir(exist_ok=True)
    number = version(name)
    say(f"building {name} {number}")
    started = time.monotonic()
    linked = f"-s -w -X k8s.io/component-base/version.gitVersion={number}" if name == "kubernetes" else "-s -w"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=".build-") as draft:
        out = Path(draft) / "bin"
        out.mkdir()
        _go(name, "build", *_FLAGS, f"-tags={_TAGS.get(name, '')}", f"-ldflags={linked}", "-o", f"{out}/", "tool")
        for program in out.iterdir():
            program.rename(out / _CALLED.get(program.name, program.name))
        out.rename(folder)
    say(f"built {name} in {time.monotonic() - started:.0f} s")
    return folder


def _go(name: str, *arguments: str) -> str:
    done = subprocess.run(
        ["go", *arguments],
        cwd=SOURCES / name,
        env={**base_env(), "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MachineUnfit(f"go {arguments[0]} of {name} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
