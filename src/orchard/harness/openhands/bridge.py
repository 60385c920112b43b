"""The parent's end of the bridge: OpenHands' terminals and its editor, in one sandbox."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from orchard.core.errors import Conflict, FileError, FileMissing, InvalidArgument, OrchardError
from orchard.core.tasks import cancel
from orchard.core.text import carried
from orchard.harness.beside.bridge import Bridge
from orchard.harness.protocol import HarnessRequest
from orchard.sandbox import Process

_SIZE = (4096, 200)
"""Columns and rows of a terminal: wide, so that an echoed command stays on its line."""
_SCREEN = 8 << 20
"""Most bytes of a terminal's output that wait to be read; the oldest go."""
_FILE = 11 << 20
"""Most bytes of a file that the editor is shown: it refuses 10 MiB and more itself."""
_LISTED = 20_000


class Terminal:
    """A shell on a terminal of the sandbox, and what it has written since somebody last looked."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._screen = bytearray()
        self._reading = asyncio.create_task(self._read(), name="OpenHands' terminal")

    async def _read(self) -> None:
        async for output in self.process:
            self._screen += output.data
            del self._screen[:-_SCREEN]

    def take(self) -> tuple[bytes, bool]:
        """Return what is new, and whether there will be no more.

        Raises:
            OrchardError: trouble of the sandbox.
        """
        new = bytes(self._screen)
        self._screen.clear()
        if ended := self._reading.done():
            self._reading.result()
        return new, ended

    async def end(self) -> None:
        """End the shell with all that it started."""
        await cancel(self._reading)
        await self.process.kill()


class Tools(Bridge):
    """Answers one fork's tools."""

    def __init__(self, request: HarnessRequest) -> None:
        super().__init__()
        self._box, self._workdir = request.box, request.workdir
        self._terminals: dict[str, Terminal] = {}
        self._known: dict[str, Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]] = {
            "open": self._open, "type": self._type, "read": self._read, "close": self._close,
            "look": self._look, "write": self._write,
        }  # fmt: skip

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Do what ``question["do"]`` says; see ``runner.py``."""
        return await self._known[question["do"]](question)

    async def end(self) -> None:
        """End all terminals; where the sandbox is gone, they are too."""
        await asyncio.gather(*(_over(terminal.end()) for terminal in self._terminals.values()))

    async def _open(self, question: dict[str, Any]) -> dict[str, Any]:
        process = await self._box.start(
            ["bash", "-i"], cwd=self._workdir, env=question["env"], pty=_SIZE, stdin=True, output_limit=1024
        )
        self._terminals[process.id] = Terminal(process)
        return {"terminal": process.id}

    async def _type(self, question: dict[str, Any]) -> dict[str, Any]:
        with suppress(Conflict):  # it has ended: the next look says so
            await self._terminals[question["terminal"]].process.send(b64decode(question["data"]))
        return {}

    async def _read(self, question: dict[str, Any]) -> dict[str, Any]:
        new, ended = self._terminals[question["terminal"]].take()
        return {"data": b64encode(new).decode(), "ended": ended}

    async def _close(self, question: dict[str, Any]) -> dict[str, Any]:
        if terminal := self._terminals.pop(question["terminal"], None):
            await terminal.end()
        return {}

    async def _look(self, question: dict[str, Any]) -> dict[str, Any]:
        path = carried(question["path"])
        try:
            entry = await self._box.files.stat(path)
            if entry.type == "dir":
                return {"kind": "folder", "entries": await self._listed(path)}
            if entry.type != "file":
                return {"kind": "refused", "why": f"{path} is no regular file"}
            return {"kind": "file", "data": b64encode(await self._box.files.read(path, length=_FILE)).decode()}
        except FileMissing:
            return {"kind": "missing", "parent": await self._box.files.exists(str(PurePosixPath(path).parent))}
        except (FileError, InvalidArgument) as error:
            return {"kind": "refused", "why": error.message}

    async def _listed(self, folder: str) -> list[tuple[str, bool]]:
        """Return what is in ``folder``, and in its folders that are not hidden: each name, and if it is a folder."""
        found = list[tuple[str, bool]]()
        for entry in await self._box.files.list(folder, limit=_LISTED):
            is_folder = entry.type == "dir"
            found.append((entry.name, is_folder))
            if is_folder and not entry.name.startswith(".") and len(found) < _LISTED:
                with suppress(FileError):
                    inner = await self._box.files.list(entry.path, limit=_LISTED)
                    found += [(f"{entry.name}/{one.name}", one.type == "dir") for one in inner]
        return found

    async def _write(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            await self._box.files.write(carried(question["path"]), b64decode(question["data"]))
        except (FileError, InvalidArgument) as error:
            return {"why": error.message}
        return {}


async def _over(end: Coroutine[Any, Any, None]) -> None:
    """Carry out one end; its failure keeps no other from its own."""
    with suppress(OrchardError, TimeoutError):
        await end
