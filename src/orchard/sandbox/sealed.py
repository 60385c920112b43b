"""This machine's git on content that an agent controls: nothing of that content, and no setting, can run anything.

Contents are only ever objects in a bare, throw-away repository: no work tree, so no attributes, filters, hooks, links
or names of the content reach the file system.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchard.core.config import env
from orchard.core.disk import disk_full, met_full, needs_room
from orchard.core.errors import MachineUnfit, OrchardError
from orchard.core.tasks import finish

FILE, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_BOUND = 300.0  # seconds one git command may take


@dataclass(frozen=True, slots=True)
class Blob:
    """A file as git knows it."""

    mode: int
    """``FILE``, ``EXECUTABLE`` or ``LINK``."""
    data: bytes
    """Content, or a link's target."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a tool did."""

    code: int
    output: bytes
    words: str


class SealedGit:
    """Git in one throw-away bare repository."""

    def __init__(self, folder: Path, program: str) -> None:
        self._program, self.folder = program, folder
        self.env = {
            "PATH": env("PATH") or "/usr/bin:/bin", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LC_ALL": "C",
            "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1",
            "GIT_DIR": str(folder / "repo"), "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat",
        }  # fmt: skip

    async def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Return what a git command prints.

        Raises:
            MachineUnfit: the disk is full.
            OrchardError: it failed.
        """
        ended = await self.attempt(*arguments, stdin=stdin)
        if ended.code and met_full(ended.words, self.folder):
            raise disk_full(self.folder.parent, ended.words)
        if ended.code:
            raise OrchardError(f"git {arguments[0]} failed here: {ended.words}")
        return ended.output

    async def attempt(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a git command; a failure is in the answer."""
        return await run_tool([self._program, *arguments], self.env, self.folder, stdin)

    async def tree(self, name: str, files: Iterable[tuple[bytes, Blob]]) -> str:
        """Store ``files`` (path, blob) as a tree; return its name for further commands."""
        lines = [f"commit refs/heads/{name}\ncommitter o <o@o> 0 +0000\ndata 0\n".encode()]
        for path, blob in files:
            lines += [b"M %o inline %s\ndata %d\n" % (blob.mode, _quoted(path), len(blob.data)), blob.data, b"\n"]
        await self.run("fast-import", "--quiet", "--force", stdin=b"".join(lines))
        return f"refs/heads/{name}"

    async def changes(self, before: str, after: str) -> dict[bytes, Blob | None]:
        """Return what differs between two trees: path -> new blob, or None where it is deleted."""
        raw = await self.run("diff-tree", "-r", "-z", "--no-renames", before, after)
        fields = raw.split(b"\0")[:-1]
        found: dict[bytes, Blob | None] = {}
        for facts, path in zip(fields[::2], fields[1::2], strict=True):
            _, mode, _, sha, _ = facts.lstrip(b":").split(b" ")
            gone = not int(mode, 8)
            found[path] = None if gone else Blob(int(mode, 8), await self.run("cat-file", "blob", sha.decode()))
        return found


@asynccontextmanager
async def sealed_git() -> AsyncGenerator[SealedGit]:
    """Yield git in a fresh repository, removed afterwards.

    Raises:
        MachineUnfit: there is no git here.
    """
    program = shutil.which("git")
    if program is None:
        raise MachineUnfit("diff and apply_patch need git on this machine", hint="install git")
    with needs_room(Path(tempfile.gettempdir())):
        folder = Path(tempfile.mkdtemp(prefix="orchard-git-"))  # in a thread, a cancel would leave it behind
    try:
        git = SealedGit(folder, program)
        await git.run("init", "--quiet", "--bare", "--template=", str(folder / "repo"))
        yield git
    finally:
        await finish(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


async def run_tool(argv: Sequence[str], env: dict[str, str], cwd: Path, stdin: bytes) -> Ended:
    """Run a program of this machine to its end; it is killed if the caller is cancelled or it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, cwd=cwd, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_BOUND):
            output, words = await process.communicate(stdin)
    except BaseException:
        with suppress(ProcessLookupError):  # it ended in this very step
            process.kill()
        await finish(process.wait())
        raise
    return Ended(process.returncode or 0, output, words.decode("utf-8", "replace").strip())


def _quoted(path: bytes) -> bytes:
    special = {0x22: b'\\"', 0x5C: b"\\\\", 0x0A: b"\\n"}
    return b'"' + b"".join(special.get(byte, bytes([byte])) for byte in path) + b'"'
