"""``box.apply_patch``: a patch applied outside the sandbox, on copies of the files that it names."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from orchard.core.errors import FileError, FileMissing, FilePresent, InvalidArgument, PatchFailed
from orchard.core.tasks import finish, unwrapped
from orchard.sandbox.files import Files
from orchard.sandbox.sealed import EXECUTABLE, FILE, LINK, Blob, SealedGit, run_tool, sealed_git

log = logging.getLogger(__name__)
_AT_ONCE = 16
_NAME = re.compile(
    rb'^(?:--- |\+\+\+ |rename from |rename to |copy from |copy to |diff --git )((?:"(?:[^"\\\n]|\\.)*"|[^\n])*)',
    re.MULTILINE,
)
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_TRIES = (
    ("--whitespace=nowarn",),
    ("--whitespace=nowarn", "--recount"),
    ("--whitespace=nowarn", "--recount", "--ignore-space-change"),
)
"""How git is asked to apply, from strict to lenient; after these comes patch(1) with fuzz."""
_FUZZY = (
    "--unified", "--fuzz=3", "--forward", "--batch", "--no-backup-if-mismatch", "--reject-file=-",
    "--remove-empty-files",
)  # fmt: skip
_BEYOND_PATCH = re.compile(
    rb"^(?:rename |copy |old mode |new mode |GIT binary|Binary files|(?:new|deleted) file mode (?!100644))", re.M
)
_HUNK = re.compile(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class Changed(tuple[str, ...]):
    """The paths that a patch changed, sorted."""

    how: str = "git apply"
    """The way that worked, with its options: ``git apply``, ``git apply --recount``, ``patch --fuzz=3`` …."""


async def apply_patch(files: Files, patch: bytes, root: str, strip: int) -> Changed:
    """Apply ``patch`` below ``root`` in the sandbox, all or nothing; return the paths that changed, and how.

    Raises:
        PatchFailed: it does not apply, or would leave ``root``; ``detail`` holds the tool's words.
    """
    if strip < 0:
        raise InvalidArgument(f"strip must be 0 or more, not {strip!r}", field="strip")
    if not patch.strip():
        return Changed()
    patch = patch if patch.endswith(b"\n") else patch + b"\n"
    present = await _Copies(files, root).fetch(named_paths(patch, strip))
    async with sealed_git() as git:
        before = await git.tree("before", sorted(present.items()))
        after, how = await _applied(git, before, present, patch, strip)
        changes = await git.changes(before, after)
    for path in changes:
        if not _inside(path):
            raise PatchFailed(f"the patch would leave {root}", detail=os.fsdecode(path))
    await _upload(files, root, present, changes)
    changed = Changed(os.fsdecode(path) for path in sorted(changes))
    changed.how = how
    return changed


def named_paths(patch: bytes, strip: int) -> set[bytes]:
    """Return every path that ``patch`` may mean: more than it touches does no harm, since only changes are sent."""
    found: set[bytes] = set()
    for match in _NAME.finditer(patch):
        line = match[0]
        whole = line.startswith((b"rename ", b"copy "))
        for word in _words(match[1]):
            path = word if whole else b"/".join(word.split(b"/")[strip:])
            found.add(os.path.normpath(path) if path else b"")
    return {path for path in found if _inside(path)}


def _words(text: bytes) -> list[bytes]:
    """Return what a header may name: a quoted path, the text up to a tab, or either half of a ``diff --git`` line."""
    text = text.rstrip(b"\r")
    quoted = re.findall(rb'"(?:[^"\\]|\\.)*"', text)
    words = [_ESCAPE.sub(_unescape, word[1:-1]) for word in quoted]
    plain = text.split(b"\t")[0].rstrip()
    words.append(plain)
    words += [plain[: match.start()] for match in re.finditer(rb" (?=b/)", plain)]
    words += [plain[match.start() + 1 :] for match in re.finditer(rb" (?=b/)", plain)]
    return [word for word in words if word and word != b"/dev/null"]


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 255]) if len(code) == 3 else bytes([_ESCAPES[code]])


def _inside(path: bytes) -> bool:
    parts = path.split(b"/")
    return (
        not path.startswith(b"/") and not {b"", b".", b".."} & set(parts) and b".git" not in (p.lower() for p in parts)
    )


class _Copies:
    """Fetches present files; below a symlink nothing is fetched but the link, so that git refuses to go through it."""

    def __init__(self, files: Files, root: str) -> None:
        self._files, self._root = files, root.rstrip("/").encode("utf-8", "surrogateescape") + b"/"
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, paths: Iterable[bytes]) -> dict[bytes, Blob]:
        found: dict[bytes, Blob] = {}
        names = {prefix for path in paths for prefix in _prefixes(path)}
        for depth in sorted({name.count(b"/") for name in names}):
            level = [name for name in names if name.count(b"/") == depth]
            level = [name for name in level if not any(prefix in found for prefix in _prefixes(name)[:-1])]
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    tasks = {name: group.create_task(self._one(name)) for name in level}
            found |= {name: blob for name, task in tasks.items() if (blob := task.result()) is not None}
        return found

    async def _one(self, name: bytes) -> Blob | None:
        async with self._limit:
            try:
                entry = await self._files.stat(self._root + name, follow=False)
                if entry.type == "symlink":
                    return Blob(LINK, os.fsencode(entry.target or ""))
                if entry.type != "file":
                    return None
                mode = EXECUTABLE if entry.mode & 0o100 else FILE
                return Blob(mode, await self._files.read(self._root + name))
            except FileMissing:
                return None
            except FileError as error:
                if error.errno_name in ("ENOTDIR", "ENAMETOOLONG"):
                    return None
                raise


def _prefixes(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[: count + 1]) for count in range(len(parts))]


async def _applied(
    git: SealedGit, before: str, present: dict[bytes, Blob], patch: bytes, strip: int
) -> tuple[str, str]:
    """Return the tree after the patch, by the first way that works, and which that was."""
    words: list[str] = []
    for flags in _TRIES:
        await git.run("read-tree", before)
        ended = await git.attempt("apply", "--cached", f"-p{strip}", *flags, "-", stdin=patch)
        if ended.code == 0:
            return (await git.run("write-tree")).decode().strip(), " ".join(["git apply", *flags[1:]])
        words.append(ended.words)
    fuzzy = await _by_patch(git, present, patch, strip, words)
    if fuzzy is None:
        raise PatchFailed("the patch does not apply; nothing was changed", detail="\n".join(dict.fromkeys(words)))
    return fuzzy, "patch --fuzz=3"


async def _by_patch(
    git: SealedGit, present: dict[bytes, Blob], patch: bytes, strip: int, words: list[str]
) -> str | None:
    """Apply with patch(1) and fuzz, in a folder of plain copies; None if it fails or is not to be trusted with this."""
    program = shutil.which("patch")
    if program is None or any(blob.mode == LINK for blob in present.values()) or _BEYOND_PATCH.search(patch):
        return None
    tree = git.folder / "tree"
    await asyncio.to_thread(_lay_out, tree, present)
    argv = [program, f"-p{strip}", *_FUZZY]
    ended = await run_tool(argv, git.env, tree, plain_hunks(patch))
    if ended.code:
        words.append((ended.output.decode("utf-8", "replace") + ended.words).strip())
        return None
    after = await asyncio.to_thread(_gather, tree)
    if after == present:  # it found nothing that it understands
        return None
    return await git.tree("fuzzy", sorted(after.items()))


def plain_hunks(patch: bytes) -> bytes:
    """Return nothing but the unified hunks of ``patch``, with true counts.

    Of everything else patch(1) might make something: a script for ed, say, which can run commands.
    """
    lines, kept, at = patch.split(b"\n"), list[bytes](), 0
    while at < len(lines):
        hunk = _HUNK.match(lines[at])
        if _is_header(lines, at):
            kept += lines[at : at + 2]
            at += 2
        elif hunk is None or not kept:
            at += 1
        else:
            body, at = _hunk_body(lines, at + 1)
            old = sum(line[:1] in (b" ", b"-") for line in body)
            new = sum(line[:1] in (b" ", b"+") for line in body)
            kept += [b"@@ -%b,%d +%b,%d @@" % (hunk[1], old, hunk[2], new), *body]
    return b"\n".join([*kept, b""])


def _is_header(lines: list[bytes], at: int) -> bool:
    return lines[at].startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ ")


def _hunk_body(lines: list[bytes], at: int) -> tuple[list[bytes], int]:
    """Return the lines of the hunk that begins at ``at``, and where it ends; an empty line is an empty context line."""
    body: list[bytes] = []
    while at < len(lines) and (lines[at][:1] in (b" ", b"+", b"-", b"\\") or not lines[at]):
        if _is_header(lines, at):
            break
        body.append(lines[at] or b" ")
        at += 1
    while body and body[-1] == b" ":  # a blank between hunks, or at the end
        body.pop()
    return body, at


def _lay_out(tree: Path, present: dict[bytes, Blob]) -> None:
    tree.mkdir()
    for name, blob in present.items():
        path = tree / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob.data)
        path.chmod(0o755 if blob.mode == EXECUTABLE else 0o644)


def _gather(tree: Path) -> dict[bytes, Blob]:
    found: dict[bytes, Blob] = {}
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            mode = EXECUTABLE if path.stat().st_mode & 0o100 else FILE
            found[os.fsencode(path.relative_to(tree))] = Blob(mode, path.read_bytes())
    return found


async def _upload(files: Files, root: str, before: dict[bytes, Blob], changes: dict[bytes, Blob | None]) -> None:
    """Send the changes; if one fails, put back what was sent."""
    base = root.rstrip("/").encode("utf-8", "surrogateescape") + b"/"
    done: list[bytes] = []
    try:
        for path, blob in sorted(changes.items(), key=lambda change: change[1] is not None):
            done.append(path)
            await _put(files, base, path, before.get(path), blob)
    except BaseException:
        await finish(_put_back(files, base, before, changes, done))
        raise


async def _put_back(
    files: Files, base: bytes, before: dict[bytes, Blob], changes: dict[bytes, Blob | None], done: list[bytes]
) -> None:
    for path in reversed(done):
        try:
            await _put(files, base, path, changes[path], before.get(path))
        except FileError as error:  # the one that failed need not be undone, and none may keep the others from it
            log.warning("%s could not be put back: %s", os.fsdecode(path), error)


async def _put(files: Files, base: bytes, path: bytes, old: Blob | None, new: Blob | None) -> None:
    """Make ``path`` hold ``new`` in place of ``old``; None is nothing."""
    if new is None or (old is not None and (old.mode == LINK) != (new.mode == LINK)) or (new.mode == LINK):
        await files.remove(base + path, missing_ok=True)
    if new is None:
        await _remove_empty(files, base, path)
    elif new.mode == LINK:
        await files.mkdir((base + path).rpartition(b"/")[0])
        await files.symlink(base + path, new.data)
    else:
        await files.write(base + path, new.data, mode=await _mode(files, base + path, old, new))


async def _mode(files: Files, path: bytes, old: Blob | None, new: Blob) -> int | None:
    """Return the mode to write with; None keeps the present one."""
    if old is None or old.mode == LINK:
        return 0o755 if new.mode == EXECUTABLE else 0o644
    if old.mode == new.mode:
        return None
    try:
        bits = (await files.stat(path)).mode
    except FileMissing:
        bits = 0o644
    return bits | (bits & 0o444) >> 2 if new.mode == EXECUTABLE else bits & ~0o111


async def _remove_empty(files: Files, base: bytes, path: bytes) -> None:
    """Remove the folders that a deletion left empty, as git does."""
    for parent in PurePosixPath(os.fsdecode(path)).parents:
        if str(parent) == ".":
            return
        try:
            await files.remove(base + os.fsencode(str(parent)))
        except (FilePresent, FileError):
            return
