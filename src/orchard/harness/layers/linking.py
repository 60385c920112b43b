"""Making programs independent of the image: a loader and libraries of the layer's own, told to them for good.

What they start sees no variable of it, and /proc/self/exe stays the program itself.
"""

from __future__ import annotations

import functools
import logging
import platform
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchard.core.errors import MachineUnfit, Unsupported
from orchard.harness.layers.elf import interpreter, is_bun, is_elf, repoint
from orchard.harness.layers.layer import Layer
from orchard.harness.layers.parts import debian, patchelf, run
from orchard.sandbox.toolnames import TOOLS

_MACHINES = {
    "x86_64": ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
_log = logging.getLogger(__name__)
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


def free(programs: Iterable[Path], folder: Path, home: str, also: Iterable[Path] = ()) -> None:
    """Give ``programs`` of a layer its loader and its libraries.

    Args:
        programs: of the layer.
        folder: the layer.
        home: where sandboxes see it.
        also: what they load while they run, with libraries of its own.

    Raises:
        MachineUnfit: one needs a library that the layers' Debian does not have; then nothing was done.
    """
    programs = list(programs)
    names = {name for program in [*programs, *also] for name in _libraries(program)}
    lib = folder / "lib"
    lib.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(_source() / name, lib / name)
    for program in programs:
        program.chmod(0o755)
        _bind(program, f"{home}/lib")


def free_all(programs: Iterable[Path], folder: Path, home: str) -> list[Path]:
    """Do it for each; return those that keep the image's loader, since no layer has all their libraries."""
    left: list[Path] = []
    for program in programs:
        try:
            free([program], folder, home)
        except MachineUnfit as error:
            _log.info("it keeps the loader of the image: %s", error.message)
            left.append(program)
    return left


def add_needed(program: Path) -> None:
    """Let ``program`` load from the layer, at its start, what wheels built for many distributions may rely on."""
    change = [word for name in _ALWAYS for word in ("--add-needed", name)]
    run([str(patchelf()), *change, str(program)], f"{program.name} could not be changed")


def _bind(program: Path, lib: str) -> None:
    if is_bun(program):
        repoint(program, f"{lib}/{loader()}", lib)
        return
    # --force-rpath: for what is loaded later too, and before any LD_LIBRARY_PATH of the image's
    rpath = ":".join([lib, *_own_folders(program)])
    change = ["--set-interpreter", f"{lib}/{loader()}", "--force-rpath", "--set-rpath", rpath]
    run([str(patchelf()), *change, str(program)], f"{program.name} could not be made independent")


def _libraries(program: Path) -> set[str]:
    """Return the names of Debian's libraries that ``program`` needs, and these in turn, with the loader."""
    own = [program.parent / each.partition("/")[2] for each in _own_folders(program)]
    waiting, found = [loader(), *_ALWAYS, *_needed(program)], set[str]()
    while waiting:
        name = waiting.pop()
        if name in found or any((folder / name).exists() for folder in own):
            continue
        if not (_source() / name).exists():
            raise MachineUnfit(f"{program.name} needs the library {name}, which no tool layer has")
        found.add(name)
        waiting += _needed(_source() / name)
    return found


def _own_folders(program: Path) -> list[str]:
    """Return the search path of ``program`` as far as it goes by where the program lies."""
    told = run([str(patchelf()), "--print-rpath", str(program)], f"{program.name} cannot be read").strip()
    return [each for each in told.split(":") if each.startswith("$ORIGIN")]


def _source() -> Path:
    return debian() / "usr" / "lib" / _machine()[0]


def bound_programs(folder: Path) -> Iterator[Path]:
    """Yield the programs below ``folder`` that this machine's loader would start, each once whatever its names."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and is_elf(path):
            wanted = interpreter(path) or ""
            if wanted.endswith(f"/{loader()}") and not wanted.startswith(TOOLS):
                yield path


@functools.cache
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
    free(bound_programs(folder / "bin"), folder, layer.folder)
