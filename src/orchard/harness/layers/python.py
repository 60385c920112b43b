"""Layers of Python: the interpreter with its library, and packages that it runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from orchard.core.errors import MachineUnfit
from orchard.harness.layers.layer import PYTHON, PYTHON_PROGRAM, Layer
from orchard.harness.layers.linking import add_needed, bound_programs, free, free_all, loader
from orchard.harness.layers.parts import debian, install, run

_NAME = "python3.13"
_OUTSIDE = """#!/bin/sh
# The interpreter on any machine with a shell: it is told its loader and libraries by where this file lies.
home=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$home/lib/LOADER" --argv0 "$0" --library-path "$home/lib" "$home/libexec/NAME" "$@"
"""
_SCRIPT = """#!{home}/venv/bin/python
import sys

from {module} import {attribute}

sys.exit({call}())
"""


def fill_python(folder: Path) -> None:
    """Fill the layer ``PYTHON``."""
    usr, program, library = debian() / "usr", folder / "libexec" / _NAME, folder / "lib" / _NAME
    program.parent.mkdir()
    shutil.copy(usr / "bin" / _NAME, program)
    shutil.copytree(usr / "lib" / _NAME, library, symlinks=True)
    for debians in ("sitecustomize.py", "EXTERNALLY-MANAGED", "test"):
        path = library / debians
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    free([program], folder, PYTHON.folder, also=library.rglob("*.so"))
    add_needed(program)  # else built wheels would find those of the image, which are of another libc
    outside = outside_program(folder)
    outside.parent.mkdir()
    outside.write_text(_OUTSIDE.replace("LOADER", loader()).replace("NAME", _NAME))
    outside.chmod(0o755)
    _compile(outside, library, folder, PYTHON.folder)


def outside_program(folder: Path) -> Path:
    """Return the interpreter of an unpacked ``PYTHON`` as this machine, or any other place, can start it."""
    return folder / "outside" / _NAME


def fill_packages(layer: Layer, folder: Path, interpreter: Path) -> None:
    """Install ``layer.python`` into an environment below ``folder``.

    Args:
        layer: what to install.
        folder: of the layer.
        interpreter: of Python 3.13, that runs on this machine.

    Raises:
        MachineUnfit: the index cannot be reached, or the first package has no program.
    """
    venv = folder / "venv"
    packages = venv / "lib" / _NAME / "site-packages"
    packages.mkdir(parents=True)
    limits = ["-c", str(layer.constraints)] if layer.constraints else []
    install([*layer.python, *limits], packages, interpreter)
    shutil.rmtree(packages / "bin", ignore_errors=True)  # they name this machine's interpreter
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(PYTHON_PROGRAM)
    home = Path(PYTHON_PROGRAM).parent
    (venv / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    free_all(bound_programs(folder), folder, layer.folder)
    _write_programs(layer, folder, packages)
    _compile(interpreter, packages, folder, layer.folder)


def _write_programs(layer: Layer, folder: Path, packages: Path) -> None:
    wanted = layer.python[0].partition("=")[0].partition("[")[0]
    programs = [each for each in _distribution(packages, wanted).entry_points if each.group == "console_scripts"]
    if not programs:
        raise MachineUnfit(f"{layer.python[0]} has no program")
    (folder / "bin").mkdir()
    for each in programs:
        text = _SCRIPT.format(
            home=layer.folder, module=each.module, attribute=each.attr.partition(".")[0], call=each.attr
        )
        path = folder / "bin" / each.name
        path.write_text(text)
        path.chmod(0o755)


def _distribution(packages: Path, name: str) -> Distribution:
    return next(iter(distributions(name=name, path=[str(packages)])))


def _compile(interpreter: Path, library: Path, folder: Path, home: str) -> None:
    """Compile once for all: by content, since the times of files are not kept, under the paths of the sandbox."""
    options: Sequence[str] = ("--invalidation-mode", "unchecked-hash", "-q", "-s", str(folder), "-p", home)
    argv = [str(interpreter), "-m", "compileall", *options, str(library)]
    # Its exit code tells of any file that is none of this Python's, and packages have some.
    run(["sh", "-c", '"$@" >/dev/null 2>&1 || [ $? = 1 ]', "sh", *argv], "Python's files could not be compiled")
