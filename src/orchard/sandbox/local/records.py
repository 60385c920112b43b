"""State on disk: one folder for each living sandbox, one small file for each that has ended, an index of keys.

``sandboxes/ID/`` is locked (flock on the folder) by whoever makes or ends that sandbox; a lock dies with its holder,
so a folder without a living PID 1 and without a lock is a dead one. ``keys/HASH`` is locked while a create under that
key runs. Everything is written whole and renamed into place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from orchard.core.errors import Conflict, MachineUnfit, NotFound
from orchard.core.ids import check_id
from orchard.sandbox.local.process import Target
from orchard.sandbox.types import SandboxInfo, SandboxSpec, State

_SOCKET_PATH_MOST = 100
"""Bytes of a socket's path; the kernel takes 107, and clients may add a few."""

_SHORTER = "export ORCHARD_HOME=/a/shorter/path"
_STUMP_AGE = 60.0
"""Seconds after which a folder that was made but never locked belongs to nobody."""


@dataclass(frozen=True)
class Record:
    """What is kept of one sandbox."""

    id: str
    key: str
    """Hash of its idempotency key."""
    spec: dict[str, Any]
    created_at: str
    """RFC 3339, as every time here."""
    socket: str
    boot: str
    """Boot of the machine in which it was made."""
    state: State = State.STARTING
    expires_at: str | None = None
    image_digest: str | None = None
    workdir: str = "/"
    user: str = ""
    env: dict[str, str] = field(default_factory=dict[str, str])
    layers: list[str] = field(default_factory=list[str])
    """Lower layers, topmost first."""
    cgroups: list[str] = field(default_factory=list[str])
    """Folders to remove with it."""
    pid: int = 0
    started: int = 0
    ended_at: str | None = None
    reason: str | None = None
    detail: str | None = None
    committed: dict[str, str] = field(default_factory=dict[str, str])
    """Name -> digest of the image that its commit made."""

    @property
    def process(self) -> Target | None:
        """PID 1 of the sandbox, once it was started."""
        return Target(self.pid, self.started) if self.pid else None

    def alive(self, boot: str) -> bool:
        """Return True while its PID 1 runs in this boot of the machine."""
        process = self.process
        return process is not None and self.boot == boot and process.alive()

    def info(self) -> SandboxInfo:
        """Return the public view."""
        return SandboxInfo(
            id=self.id, state=self.state, image=str(self.spec["image"]), image_digest=self.image_digest,
            labels=dict(self.spec["labels"]), created_at=datetime.fromisoformat(self.created_at),
            expires_at=_time(self.expires_at), backend="local", reason=self.reason, ended_at=_time(self.ended_at),
            detail=self.detail, workdir=self.workdir, user=self.user, env=dict(self.env),
        )  # fmt: skip

    def ended(self, reason: str, detail: str | None = None, at: str | None = None) -> Record:
        """Return this record with its end written in."""
        return replace(self, state=State.GONE, reason=reason, detail=detail, ended_at=at or now(), env={})


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def now() -> str:
    """Return the time as RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat()


def plain_spec(spec: SandboxSpec) -> dict[str, Any]:
    """Return ``spec`` as JSON values; equal specs give equal values."""
    plain = dict(vars(spec))
    for name in ("env", "labels"):
        plain[name] = dict(sorted(plain[name].items()))
    plain["tools"] = list(spec.tools)
    if not isinstance(spec.entrypoint, bool):
        plain["entrypoint"] = list(spec.entrypoint)
    return plain


class Store:
    """The folders below ``home``; every method is safe across threads and processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.sandboxes = home / "sandboxes"
        self.endings = home / "ended"
        self._keys = home / "keys"
        self._making = home / "making"

    def prepare(self) -> None:
        """Make the folders, for the owner only."""
        runtime = self.home / "runtime"
        for folder in (self.home, self.sandboxes, self.endings, self._keys, self._making, runtime):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folder(self, sandbox_id: str) -> Path:
        """Return where a living sandbox keeps its state."""
        return self.sandboxes / check_id(sandbox_id, "sandbox id")

    def token(self, sandbox_id: str) -> str:
        """Return the token of a sandbox: nothing of it is stored."""
        return hmac.new(self._service_key(), sandbox_id.encode(), hashlib.sha256).hexdigest()

    def socket(self, sandbox_id: str) -> Path:
        """Return where its socket lies: in its folder, or in a short one where that path is too long."""
        path = self.folder(sandbox_id) / "s"
        if len(os.fsencode(path)) <= _SOCKET_PATH_MOST:
            return path
        short = Path(tempfile.gettempdir()) / f"orchard-{os.getuid()}"
        with contextlib.suppress(FileNotFoundError):
            if short.lstat().st_uid != os.getuid():
                raise MachineUnfit(
                    f"{short} belongs to another user, and sockets of {self.home} lie there", hint=_SHORTER
                )
        return short / sandbox_id

    @contextlib.contextmanager
    def key(self, key: str) -> Generator[KeySlot | None]:
        """Hold the slot of an idempotency key, or yield None while another create under it holds it."""
        name = hashlib.sha256(key.encode()).hexdigest()
        with _locked(self._keys / name, os.O_RDWR | os.O_CREAT) as fd:
            yield None if fd is None else KeySlot(name, fd)

    def drop_key(self, name: str, sandbox_id: str) -> None:
        """Forget a key if it still stands for this sandbox."""
        with _locked(self._keys / name, os.O_RDWR) as fd:
            if fd is not None and KeySlot(name, fd).sandbox() == sandbox_id:
                (self._keys / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def new_folder(self, sandbox_id: str) -> Generator[Path]:
        """Make the folder of a new sandbox, locked before anyone can see it, and until the block ends."""
        hidden = self._making / sandbox_id
        hidden.mkdir(mode=0o700)
        with _locked(hidden, os.O_RDONLY | os.O_DIRECTORY) as fd:
            if fd is None:
                raise Conflict(f"sandbox {sandbox_id} is already being made")
            folder = self.folder(sandbox_id)
            hidden.rename(folder)
            yield folder

    @contextlib.contextmanager
    def lock(self, sandbox_id: str) -> Generator[bool]:
        """Try to hold a sandbox for ending it; False: another process makes or ends it, or it is gone."""
        with _locked(self.folder(sandbox_id), os.O_RDONLY | os.O_DIRECTORY) as fd:
            yield fd is not None

    def write(self, record: Record) -> None:
        """Keep the record of a living sandbox."""
        _write_json(self.folder(record.id) / "record.json", vars(record))

    def end(self, record: Record) -> None:
        """Keep the record of an ended one; from here on it is gone, whatever is left of its folder."""
        _write_json(self.endings / f"{record.id}.json", vars(record))

    def read(self, sandbox_id: str) -> Record:
        """Return the record, living or ended.

        Raises:
            NotFound: no such sandbox.
        """
        check_id(sandbox_id, "sandbox id")
        for _ in range(2):  # it may end between the two looks
            for path in (self.endings / f"{sandbox_id}.json", self.sandboxes / sandbox_id / "record.json"):
                record = _read_record(path)
                if record is not None:
                    return record
        raise NotFound(f"no sandbox {sandbox_id} on this machine")

    def ids(self) -> list[str]:
        """Return the sandboxes that have a folder, oldest first."""
        try:
            return sorted(entry.name for entry in os.scandir(self.sandboxes))
        except FileNotFoundError:
            return []

    def forget_ended(self, age: float) -> None:
        """Drop the records, and the keys, of what ended more than ``age`` seconds ago; and stumps of both."""
        limit = time.time() - age
        for entry in list(os.scandir(self.endings)):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < limit:
                    record = _read_record(Path(entry.path))
                    if record is not None:
                        self.drop_key(record.key, record.id)
                    Path(entry.path).unlink(missing_ok=True)
        for entry in list(os.scandir(self._keys)):  # of creates that failed
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_size == 0 and entry.stat().st_mtime < time.time() - _STUMP_AGE:
                    self._drop_empty_key(Path(entry.path))
        for entry in list(os.scandir(self._making)):  # a creator that died between two system calls
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < time.time() - _STUMP_AGE:
                    Path(entry.path).rmdir()

    @staticmethod
    def _drop_empty_key(path: Path) -> None:
        with _locked(path, os.O_RDWR) as fd:
            if fd is not None and os.fstat(fd).st_size == 0:
                path.unlink(missing_ok=True)

    def _service_key(self) -> bytes:
        path = self.home / "service.key"
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                return path.read_bytes()
            with tempfile.NamedTemporaryFile(dir=self.home, prefix=".key-") as draft:  # mode 0600
                draft.write(secrets.token_bytes(32))
                draft.flush()
                with contextlib.suppress(FileExistsError):
                    os.link(draft.name, path)
        return path.read_bytes()


class KeySlot:
    """What one idempotency key stands for; held by its lock."""

    def __init__(self, name: str, fd: int) -> None:
        self.name, self._fd = name, fd

    def content(self) -> dict[str, Any]:
        """Return ``{"sandbox", "spec"}``, or nothing for a new key."""
        text = os.pread(self._fd, 1 << 24, 0)
        return cast("dict[str, Any]", json.loads(text)) if text else {}

    def sandbox(self) -> str | None:
        """Return the sandbox that the key stands for."""
        return self.content().get("sandbox")

    def clear(self) -> None:
        """Let the key stand for nothing: its create failed."""
        os.ftruncate(self._fd, 0)

    def fill(self, sandbox_id: str, spec: dict[str, Any]) -> None:
        """Let the key stand for this sandbox."""
        os.ftruncate(self._fd, 0)
        content = json.dumps({"sandbox": sandbox_id, "spec": spec}).encode()
        if os.pwrite(self._fd, content, 0) < len(content):  # a disk that is full in mid-write says nothing yet
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _locked(path: Path, flags: int) -> Generator[int | None]:
    """Yield a descriptor of ``path`` with its flock, or None where another holds it or the path is not there."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield None
        return
    try:
        held = _try_lock(fd) and _same(path, fd)
        yield fd if held else None
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _write_json(path: Path, value: object) -> None:
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as stream:
            stream.write(json.dumps(value))  # one call into C; dump() would walk it in Python
        draft.rename(path)
    except OSError:
        draft.unlink()
        raise


_NAMES = frozenset(each.name for each in fields(Record))


def _read_record(path: Path) -> Record | None:
    try:
        value = cast("dict[str, Any]", json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    value["state"] = State(value["state"])
    return Record(**{name: value[name] for name in value if name in _NAMES})
