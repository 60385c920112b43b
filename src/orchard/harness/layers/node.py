"""Layers of Node: the program itself, and npm packages that it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from orchard.core.errors import MachineUnfit
from orchard.harness.layers.layer import NODE, NODE_PROGRAM, Layer
from orchard.harness.layers.linking import bound_programs, free, free_all
from orchard.harness.layers.parts import layers_dir, node_wheel, run

_NPM = Path("lib", "node_modules", "npm", "bin", "npm-cli.js")
_OPTIONS = ("--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--engine-strict")


def fill_node(folder: Path) -> None:
    """Fill the layer ``NODE``."""
    program = folder / "libexec" / "node"
    program.parent.mkdir()
    shutil.copy(node_wheel() / "bin" / "node", program)
    free([program], folder, NODE.folder)


def fill_npm(layer: Layer, folder: Path) -> None:
    """Install ``layer.npm`` below ``folder``; every program of it becomes independent of the image.

    Raises:
        MachineUnfit: the index cannot be reached, or the package has no such program.
    """
    wanted = dict(_split(each) for each in layer.npm)
    (folder / "package.json").write_text(json.dumps({"name": layer.name, "private": True, "dependencies": wanted}))
    scripts = "--foreground-scripts" if layer.npm_scripts else "--ignore-scripts"
    node, npm = node_wheel() / "bin" / "node", node_wheel() / _NPM
    cache = f"--cache={layers_dir() / 'npm'}"
    run(
        [str(node), str(npm), "install", "--prefix", str(folder), *_OPTIONS, scripts, cache],
        f"npm could not install {' '.join(layer.npm)}", "check that its registry is reachable: npm view npm version",
        {"PATH": f"{node.parent}:/usr/bin:/bin"},
    )  # fmt: skip
    programs = _programs(layer, folder, list(wanted))
    for program in free_all(bound_programs(folder), folder, layer.folder):
        if program in programs.values():
            raise MachineUnfit(f"{program.name} needs libraries that no tool layer has")
    (folder / "bin").mkdir()
    for name, program in programs.items():
        _free_script(program)
        program.chmod(0o755)
        (folder / "bin" / name).symlink_to(Path("..", program.relative_to(folder)))


def _split(package: str) -> tuple[str, str]:
    name, _, version = package.rpartition("@")
    return name, version


def _programs(layer: Layer, folder: Path, packages: list[str]) -> dict[str, Path]:
    """Return the programs of ``bin`` by name: those that ``links`` tells of, else those of the packages."""
    modules, programs = folder / "node_modules", dict[str, Path]()
    for name, pattern in layer.links.items():
        found = sorted(modules.glob(pattern))
        if not found:
            raise MachineUnfit(f"{' '.join(layer.npm)} has no program {pattern} for this machine")
        programs[name] = found[0]
    for package in packages if not layer.links else ():
        facts = json.loads((modules / package / "package.json").read_text())
        given = facts.get("bin") or {}
        names = {package.rpartition("/")[2]: given} if isinstance(given, str) else given
        programs |= {name: modules / package / path for name, path in names.items()}
    return programs


def _free_script(program: Path) -> None:
    """Let a script of Node's be started by the layer's, by path: /usr/bin/env and PATH are the image's."""
    first, newline, rest = program.read_bytes().partition(b"\n")
    words = first.removeprefix(b"#!").split()
    if first.startswith(b"#!") and any(word.rpartition(b"/")[2] == b"node" for word in words):
        flags = words[next(at for at, word in enumerate(words) if word.rpartition(b"/")[2] == b"node") + 1 :]
        program.write_bytes(b" ".join([b"#!" + NODE_PROGRAM.encode(), *flags[:1]]) + newline + rest)
