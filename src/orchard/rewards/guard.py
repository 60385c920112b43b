"""What an attempt may not decide on: its tests, and what tells pytest and Python how to run them.

After the attempt's patch those files are put back as the image has them, and new ones are removed. What guards
against the rest stands in ``orchard.tasks.suite``: modules named as pytest's or Python's own do not shadow them, and
the environment's variables are cut off.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from orchard.sandbox import Sandbox
from orchard.sandbox.manifest import Baseline, Manifest, Node, fetch_manifest, take_baseline
from orchard.sandbox.sealed import Blob
from orchard.tasks.model import TestPlan
from orchard.tasks.tree import is_test

_NAMES = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml"})
_STARTUP = re.compile(r"(site|user)customize(\..*)?|.*\.(pth|pyc|egg-link)|__pycache__|.*\.(egg-info|dist-info)")
_OUTSIDE = (".git",)
_SETTINGS = {"pyproject.toml": ("pytest", "tox"), "setup.cfg": ("tool:pytest", "pytest", "tox", "testenv")}


@dataclass
class Undone:
    """What of an attempt did not count."""

    restored: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])


def is_guarded(path: str, plan: TestPlan) -> bool:
    """True if an attempt may not change, add or remove ``path`` (relative to the work tree)."""
    pure = PurePosixPath(path)
    if pure.name in _NAMES or any(_STARTUP.fullmatch(part) for part in pure.parts):
        return True
    if path in plan.files or path in plan.deleted or path in plan.protected:
        return True
    if any(path.startswith(entry) or path == entry[:-1] for entry in plan.protected if entry.endswith("/")):
        return True
    return plan.covers(path) and ("." not in plan.roots or is_test(path))


def settings_of(name: str, data: bytes) -> Mapping[str, Any] | None:
    """Return what ``pyproject.toml`` or ``setup.cfg`` tells pytest and tox; None where it cannot be read."""
    try:
        text = data.decode()
        if name == "pyproject.toml":
            tool = tomllib.loads(text).get("tool", {})
            return {key: tool[key] for key in _SETTINGS[name] if key in tool}
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, configparser.Error, AttributeError, TypeError):
        return None
    return {
        section: dict(parser[section]) for section in parser.sections() if section.split(":env")[0] in _SETTINGS[name]
        or section.startswith("testenv")
    }  # fmt: skip


async def guard(box: Sandbox, workdir: str) -> Baseline:
    """Take down what the image has, before the patch is applied; kept outside of the sandbox."""
    return await take_baseline(box.transport, workdir, _OUTSIDE)


async def restore(box: Sandbox, before: Baseline, plan: TestPlan) -> Undone:
    """Put back and remove what the patch did to guarded names, then lay the plan's tests over the tree."""
    after = await fetch_manifest(box.transport, before.path, _OUTSIDE)
    undone = Undone()
    for path in _to_remove(before.nodes, after, plan):
        if path in after:
            await _remove(box, before.path, path, after)
            undone.removed.append(path)
    for path in await _changed_settings(box, before, after):
        await _remove(box, before.path, path, after)
        if path not in before.nodes:
            undone.removed.append(path)
    lost = [path for path, node in before.nodes.items() if _lost(path, node, after, plan)]
    contents = await before.blobs(lost)
    for path in sorted(lost):
        await _put_back(box, f"{before.path}/{path}", before.nodes[path], contents.get(path))
    undone.restored += sorted(lost)
    for path in plan.deleted:
        await box.files.remove(f"{before.path}/{path}", missing_ok=True)
    for path, data in plan.files.items():
        await box.files.write(f"{before.path}/{path}", data)
    return undone


def _to_remove(before: Manifest, after: Manifest, plan: TestPlan) -> Iterator[str]:
    """Yield, parents first, what is new under a guarded name or stands where a guarded name needs something else."""
    needed = {path for path in before if is_guarded(path, plan)} | set(plan.files)
    ancestors = {parent.as_posix() for path in needed for parent in PurePosixPath(path).parents} - {"."}
    for path in sorted(after):
        known = before.get(path)
        if (is_guarded(path, plan) and (known is None or known.type != after[path].type)) or (
            path in ancestors and after[path].type != "dir"
        ):
            yield path


async def _changed_settings(box: Sandbox, before: Baseline, after: Manifest) -> Sequence[str]:
    """Return the present settings files whose parts for pytest and tox are not as in the image."""
    changed = [path for path, node in after.items() if _has_settings(path) and not node.same(before.nodes.get(path))]
    contents = await before.blobs(path for path in changed if path in before.nodes)
    found: list[str] = []
    for path in changed:
        name = PurePosixPath(path).name
        was = settings_of(name, contents[path].data) if path in contents else {}
        now = settings_of(name, await box.files.read(f"{before.path}/{path}")) if after[path].type == "file" else None
        if now is None or now != was:
            found.append(path)
    return found


def _lost(path: str, node: Node, after: Manifest, plan: TestPlan) -> bool:
    """True if a guarded name, or a whole settings file, is not there as the image has it."""
    if path in plan.files or path in plan.deleted:
        return False
    now = after.get(path)
    if is_guarded(path, plan):
        return now is None or (now.type, now.mode, now.sha256, now.target) != (
            node.type, node.mode, node.sha256, node.target
        )  # fmt: skip
    return now is None and _has_settings(path)


async def _remove(box: Sandbox, workdir: str, path: str, after: dict[str, Node]) -> None:
    await box.files.remove(f"{workdir}/{path}", recursive=True, missing_ok=True)
    for gone in [other for other in after if other == path or other.startswith(f"{path}/")]:
        del after[gone]


async def _put_back(box: Sandbox, path: str, node: Node, content: Blob | None) -> None:
    if node.type == "dir":
        await box.files.mkdir(path)
    elif node.type == "symlink" and node.target is not None:
        await box.files.remove(path, missing_ok=True)
        await box.files.symlink(path, node.target)
    elif content is not None:
        await box.files.write(path, content.data, mode=node.mode & 0o7777)


def _has_settings(path: str) -> bool:
    return PurePosixPath(path).name in _SETTINGS
