"""Local trees as tar: written from a folder, and extracted so that no archive can reach out of its target."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from orchard.core.errors import FileError

_COPY = 1 << 18
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}


def tar_blocks(root: Path, skipped: list[str]) -> Iterator[bytes]:
    """Yield the bytes of a tar (PAX) of what is below ``root``; no link is followed.

    Args:
        root: a folder.
        skipped: gets the names, relative to ``root``, of what a tar of files cannot hold: FIFOs, sockets, devices.
    """
    for name, path in _walk(root, ""):
        facts = path.lstat()
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode))
        if kind is None:
            skipped.append(name)
            continue
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = kind, stat.S_IMODE(facts.st_mode), facts.st_mtime  # pyright: ignore[reportAttributeAccessIssue]
        info.size = facts.st_size if kind == tarfile.REGTYPE else 0
        info.linkname = str(path.readlink()) if kind == tarfile.SYMTYPE else ""
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if info.size:
            yield from _content(path, info.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        yield name, Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), name + "/")


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Yield exactly ``size`` bytes, padded to whole blocks, even if the file changes meanwhile."""
    left = size
    with path.open("rb") as file:
        while left and (piece := file.read(min(_COPY, left))):
            left -= len(piece)
            yield piece
    if left:
        raise FileError.of(f"{path} became shorter while it was read", errno_name="EIO", path=str(path))
    yield bytes(-size % tarfile.BLOCKSIZE)


class Extractor:
    """Writes the members of a tar below ``root``, and never elsewhere.

    Each name is walked component by component from an open folder, no link followed, so that neither ``..`` nor an
    absolute name nor a symlink of the archive leads out. Symlinks are made as they are. Owners are not kept, and of
    the mode only permissions.
    """

    def __init__(self, root: Path) -> None:
        try:
            self._fresh = not root.exists()
            root.mkdir(parents=True, exist_ok=True)
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileExistsError as error:
            raise FileError.of(f"{root} is no folder here", errno_name="ENOTDIR", path=str(root)) from error
        except OSError as error:
            raise local_error(error, str(root)) from error
        self._last: tuple[tuple[str, ...], int] = ((), self._root)
        self._folders: dict[tuple[str, ...], tuple[int, float]] = {}
        self.files = 0
        self.skipped: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish_folders()
        finally:
            self._forget_parent()
            os.close(self._root)

    def add(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Write one member.

        Raises:
            FileError: ``EXDEV`` for a name that leads out; otherwise as the local file system says.
        """
        parts = safe_parts(member.name)
        if not parts:
            if self._fresh and member.isdir():
                self._folders[()] = (member.mode, member.mtime)
            return
        parent, name = self._parent(parts[:-1]), parts[-1]
        try:
            if member.isdir():
                self._folder(parent, name)
                self._folders[parts] = (member.mode, member.mtime)
            elif member.issym():
                self._clear(parent, name)
                os.symlink(member.linkname, name, dir_fd=parent)
                os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)
            elif member.islnk():
                self._link(parent, name, member.linkname)
            elif member.isfile() and content is not None:
                self._file(parent, name, member, content)
            else:
                self.skipped.append(member.name)
        except OSError as error:
            raise local_error(error, member.name) from error
        self.files += 1

    def _parent(self, parts: tuple[str, ...]) -> int:
        if parts == self._last[0]:
            return self._last[1]
        self._forget_parent()
        here = self._root
        try:
            for part in parts:
                following = self._descend(here, part)
                if here != self._root:
                    os.close(here)
                here = following
        except OSError as error:
            if here != self._root:
                os.close(here)
            raise local_error(error, "/".join(parts)) from error
        self._last = (parts, here)
        return here

    @staticmethod
    def _descend(here: int, part: str) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            os.mkdir(part, 0o755, dir_fd=here)
            return os.open(part, _DIRECTORY, dir_fd=here)

    def _forget_parent(self) -> None:
        if self._last[1] != self._root:
            os.close(self._last[1])
        self._last = ((), self._root)

    @staticmethod
    def _folder(parent: int, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
        folder = os.open(name, _DIRECTORY, dir_fd=parent)
        os.fchmod(folder, 0o700)  # an old one may be read-only; its mode is set last
        os.close(folder)

    @staticmethod
    def _clear(parent: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            os.rmdir(name, dir_fd=parent)

    def _file(self, parent: int, name: str, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        self._clear(parent, name)
        target = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent
        )
        with os.fdopen(target, "wb") as file:
            for offset, size in _pieces(member):
                if offset:
                    getattr(content, "raw", content).seek(offset)  # the raw one can, in a tar that is a stream
                    file.seek(offset)
                while size and (piece := content.read(min(_COPY, size))):
                    file.write(piece)
                    size -= len(piece)
            file.truncate(member.size)
            os.fchmod(target, member.mode & 0o777)
            file.flush()
            os.utime(target, (member.mtime, member.mtime))

    def _link(self, parent: int, name: str, linkname: str) -> None:
        parts = safe_parts(linkname)
        if not parts:
            raise _outside(linkname)
        source = self._root
        try:
            for part in parts[:-1]:
                following = os.open(part, _DIRECTORY, dir_fd=source)
                if source != self._root:
                    os.close(source)
                source = following
            self._clear(parent, name)
            os.link(parts[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            if source != self._root:
                os.close(source)

    def _finish_folders(self) -> None:
        """Set modes and times of folders last, deepest first: a read-only one must first be filled."""
        for parts, (mode, mtime) in sorted(self._folders.items(), reverse=True):
            if parts:
                parent = self._parent(parts[:-1])
                folder = os.open(parts[-1], _DIRECTORY, dir_fd=parent)
            else:
                folder = os.dup(self._root)
            try:
                os.fchmod(folder, mode & 0o777)
                os.utime(folder, (mtime, mtime))
            finally:
                os.close(folder)


def _pieces(member: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Return (offset, size) of what a member holds: all, or the data between the holes of a sparse file."""
    return getattr(member, "sparse", None) or [(0, member.size)]


def safe_parts(name: str) -> tuple[str, ...]:
    """Return the components of a member's name.

    Raises:
        FileError: ``EXDEV``: it is absolute or holds ``..``.
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _outside(name)
    return parts


def _outside(name: str) -> FileError:
    return FileError.of(f"{name!r} in the archive leads out of the target folder", errno_name="EXDEV", path=name)


def local_error(error: OSError, name: str) -> OSError:
    """Return the ``FileError`` for what this machine's file system says of ``name``."""
    if isinstance(error, FileError):
        return error
    word = errno.errorcode.get(error.errno or 0, "EIO")
    return FileError.of(f"cannot write {name!r} here: {error.strerror}", errno_name=word, path=name)
