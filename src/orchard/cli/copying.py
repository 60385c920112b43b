"""``orchard sandbox cp``: which side is the sandbox, and what a target that is a folder means."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path, PurePosixPath

from orchard.cli import console
from orchard.core.errors import FileMissing, InvalidArgument
from orchard.sandbox.box import Sandbox
from orchard.sandbox.orchard import Orchard
from orchard.sandbox.tree import Transfer

_REMOTE = re.compile(r"([a-z0-9][a-z0-9-]*):(.*)", re.DOTALL)


def split(argument: str) -> tuple[str | None, str]:
    """Return (sandbox id, path); the id is None for a path of this machine. ``./a:b`` is one of those.

    Raises:
        InvalidArgument: no path, or ``-``.
    """
    if argument == "-":
        hint = "to print a file copy it to /dev/stdout; a file that is named - is ./-"
        raise InvalidArgument("cp takes no -", field="path", hint=hint)
    match = _REMOTE.fullmatch(argument)
    sandbox, path = (match[1], match[2]) if match else (None, argument)
    if not path:
        raise InvalidArgument(f"{argument!r} names no path", field="path")
    return sandbox, path


async def copy(url: str | None, source: str, target: str) -> Transfer:
    """Copy between this machine and a sandbox.

    Raises:
        InvalidArgument: not exactly one side is a sandbox.
        FileError: what the file system says, on either side.
    """
    (source_box, source_path), (target_box, target_path) = split(source), split(target)
    if (source_box is None) == (target_box is None):
        raise InvalidArgument("exactly one of source and target must be ID:PATH", field="target")
    async with Orchard(url) as orchard:
        box = await orchard.attach(source_box or target_box or "")
        with console.working("copying"):
            if source_box is None:
                return await _upload(box, Path(source_path), target_path)
            return await _download(box, source_path, Path(target_path), into=target_path.endswith("/"))


async def _upload(box: Sandbox, local: Path, remote: str) -> Transfer:
    exists, is_folder = await asyncio.to_thread(_look, local)
    if not exists:
        raise FileMissing(f"{local} does not exist", errno_name="ENOENT", path=str(local))
    if not is_folder and (remote.endswith("/") or await _is_folder(box, remote)):
        remote = str(PurePosixPath(remote) / local.name)
    return await box.upload(local, remote)


async def _download(box: Sandbox, remote: str, local: Path, *, into: bool) -> Transfer:
    if (into or (await asyncio.to_thread(_look, local))[1]) and not await _is_folder(box, remote):
        local = local / PurePosixPath(remote).name
    return await box.download(remote, await asyncio.to_thread(_file_behind, local))


def _file_behind(path: Path) -> Path:
    """Return the file that a link leads to, so that the link stays; /dev/stdout is one where it goes to a file."""
    return path.resolve() if path.is_symlink() and path.is_file() else path


def _look(path: Path) -> tuple[bool, bool]:
    return path.exists(), path.is_dir()


async def _is_folder(box: Sandbox, path: str) -> bool:
    try:
        return (await box.files.stat(path)).type == "dir"
    except FileMissing:
        return False
