"""Making programs independent of the image: a loader and libraries of the layer's own, told to them for good.

What they start sees no variable of it, and /proc/self/exe stays the program itself.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchard.core.errors import MachineUnfit, Unsupported
from orchard.harness.layers.elf import interpreter, is_bun, is_elf, repoint
from orchard.harness.layers.layer import Layer
from orchard.harness.layers.parts import debian, patchelf, run

_MACHINES = {
    "x86_64": ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
_ALWAYS = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2",
    "libgcc_s.so.1", "libstdc++.so.6", "libnss_dns.so.2", "libnss_files.so.2",
)  # fmt: skip
"""What programs ask for while they run, besides what they name, and what built wheels may rely on."""


def loader() -> str:
    """Return the name of this machine's loader.

    Raises:
        Unsupported: no layers are made for this machine.
    """
    return _machine()[1]


def add_libraries(lib: Path, programs: Iterable[Path]) -> None:
    """Put Debian's loader, and every library that ``programs`` need in turn, into the folder ``lib``.

    Raises:
        MachineUnfit: they need one that the layer's Debian does not have.
    """
    source = debian() / "usr" / "lib" / _machine()[0]
    lib.mkdir(parents=True, exist_ok=True)
    waiting = [(loader(), "every program"), *((name, "every program") for name in _ALWAYS)]
    waiting += [(name, program.name) for program in programs for name in _needed(program)]
    while waiting:
        name, user = waiting.pop()
        if (lib / name).exists():
            continue
        if not (source / name).exists():
            raise MachineUnfit(f"{user} needs the library {name}, which no layer has")
        shutil.copy(source / name, lib / name)
        waiting += [(more, name) for more in _needed(lib / name)]


def free(programs: Iterable[Path], home: str) -> None:
    """Bind ``programs`` to the loader and the libraries in ``lib`` of the layer that sandboxes see as ``home``."""
    lib = f"{home}/lib"
    for program in programs:
        program.chmod(0o755)
        if is_bun(program):
            repoint(program, f"{lib}/{loader()}", lib)
        else:
            # --force-rpath: for what is loaded later too, and before any LD_LIBRARY_PATH of the image's
            change = ["--set-interpreter", f"{lib}/{loader()}", "--force-rpath", "--set-rpath", lib]
            run([str(patchelf()), *change, str(program)], f"{program.name} could not be made independent")


def bound_programs(folder: Path) -> Iterator[Path]:
    """Yield the programs below ``folder`` that would be started by this machine's loader."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and is_elf(path):
            wanted = interpreter(path)
            if wanted is not None and wanted.rpartition("/")[2] == loader():
                yield path


def _needed(path: Path) -> list[str]:
    return run([str(patchelf()), "--print-needed", str(path)], f"{path.name} cannot be read").split()


def _machine() -> tuple[str, str]:
    try:
        return _MACHINES[platform.machine()]
    except KeyError:
        raise Unsupported(f"no tool layers are made for {platform.machine()}") from None


def fill_programs(layer: Layer, folder: Path) -> None:
    """Put ``layer.programs`` into ``bin`` with all that they stand on."""
    (folder / "bin").mkdir()
    for name, path in layer.programs.items():
        shutil.copy(path, folder / "bin" / name)
    if bound := list(bound_programs(folder / "bin")):
        add_libraries(folder / "lib", bound)
        free(bound, layer.folder)
