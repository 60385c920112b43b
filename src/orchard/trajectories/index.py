"""The index: a SQLite file made from the segments. A cache, never truth: missing, behind or broken, it is rebuilt."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from orchard.core.errors import InvalidArgument, StoreFailed
from orchard.trajectories.segments import Frame, read_frames, segment_paths

_VERSION = 2
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_REASONS = {
    sqlite3.SQLITE_FULL: "no_space", sqlite3.SQLITE_READONLY: "denied", sqlite3.SQLITE_CANTOPEN: "denied",
    sqlite3.SQLITE_PERM: "denied",
}  # fmt: skip
_SCHEMA = """
CREATE TABLE segments (name TEXT PRIMARY KEY, done INTEGER NOT NULL);
CREATE TABLE frames (session TEXT NOT NULL, segment TEXT NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL,
  PRIMARY KEY (session, segment, offset)) WITHOUT ROWID;
CREATE TABLE sessions (session TEXT PRIMARY KEY, at TEXT NOT NULL, labels TEXT NOT NULL, segment TEXT NOT NULL);
CREATE TABLE rollouts (id TEXT PRIMARY KEY, segment TEXT NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL,
  line INTEGER NOT NULL, run TEXT, task TEXT, attempt INTEGER, tries INTEGER, harness TEXT, policy TEXT,
  policy_version TEXT, model TEXT, stop TEXT, reward REAL, failure TEXT, failure_reason TEXT, turns INTEGER,
  started_at TEXT, seconds REAL, labels TEXT, sessions TEXT);
CREATE INDEX rollouts_by_run ON rollouts (run, task);
CREATE TABLE closed (session TEXT PRIMARY KEY, rollout TEXT NOT NULL, segment TEXT NOT NULL) WITHOUT ROWID;
"""
_HEAD = re.compile(rb'\{"type": "call", "session": "([^"\\]+)"')
"""How a call's line begins, so that an index is made without parsing what a call holds."""
_ROLLOUT_COLUMNS = (
    "id", "segment", "offset", "size", "line", "run", "task", "attempt", "tries", "harness", "policy",
    "policy_version", "model", "stop", "reward", "failure", "failure_reason", "turns", "started_at", "seconds",
    "labels", "sessions",
)  # fmt: skip
_PUT_ROLLOUT = (
    f"INSERT INTO rollouts ({', '.join(_ROLLOUT_COLUMNS)}) VALUES ({', '.join('?' * len(_ROLLOUT_COLUMNS))}) "
    "ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _ROLLOUT_COLUMNS[1:])
    + " WHERE (excluded.failure IS NOT NULL, excluded.segment, excluded.offset, excluded.line)"
    + " < (failure IS NOT NULL, segment, offset, line)"
)
"""Should one rollout have been closed twice, the first record counts, in whatever order the segments are read; but one
without a failure goes before any with one, so that what infrastructure broke can be run again."""


class Index:
    """Finds records by what they say. Safe to use from several threads and processes at once."""

    def __init__(self, path: Path, segments: Path) -> None:
        self._path, self._segments = path, segments

    @contextmanager
    def query(self) -> Generator[sqlite3.Connection]:
        """Bring the index up to date and give a connection that can only read.

        Raises:
            StoreFailed: there is no room for it, or no right to write it.
        """
        try:
            db = self._open()
        except sqlite3.Error as error:
            reason = _REASONS.get(error.sqlite_errorcode & 0xFF, "io")
            raise StoreFailed(f"cannot bring {self._path} up to date: {error}", reason=reason) from error
        with closing(db):
            db.execute("PRAGMA query_only = 1")
            yield db

    def _open(self) -> sqlite3.Connection:
        try:
            return self._refreshed()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in _BROKEN:
                raise
            for suffix in ("", "-journal", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return self._refreshed()

    def _refreshed(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            db.create_function("label", 2, _label, deterministic=True)
            _share(db)
            db.execute("PRAGMA synchronous = OFF")
            self._catch_up(db)
        except BaseException:
            db.close()
            raise
        return db

    def _catch_up(self, db: sqlite3.Connection) -> None:
        paths = segment_paths(self._segments)
        if not self._behind(db, paths):
            return
        db.execute("BEGIN IMMEDIATE")
        with db:
            if self._version(db) != _VERSION:
                _reset(db)
            self._forget(db, {path.name: path.stat().st_size for path in paths})
            done = dict(db.execute("SELECT name, done FROM segments"))
            for path in paths:
                if path.stat().st_size > done.get(path.name, 0):
                    _index_segment(db, path, done.get(path.name, 0))
            db.execute("COMMIT")

    def _behind(self, db: sqlite3.Connection, paths: list[Path]) -> bool:
        if self._version(db) != _VERSION:
            return True
        done = dict(db.execute("SELECT name, done FROM segments"))
        return done.keys() != {path.name for path in paths} or any(
            path.stat().st_size != done[path.name] for path in paths
        )

    @staticmethod
    def _version(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    @staticmethod
    def _forget(db: sqlite3.Connection, sizes: dict[str, int]) -> None:
        """Start over when a file is gone or shorter than what was read of it: an earlier first record may count now."""
        for name, done in db.execute("SELECT name, done FROM segments").fetchall():
            if sizes.get(name, -1) < done:
                _reset(db)
                return


def _share(db: sqlite3.Connection) -> None:
    """Let readers and a writer work side by side; where another process is switching right now, it does so for us."""
    try:
        db.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise


def _reset(db: sqlite3.Connection) -> None:
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        db.execute(f'DROP TABLE "{name}"')
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {_VERSION}")


def _index_segment(db: sqlite3.Connection, path: Path, offset: int) -> None:
    for frame in read_frames(path, offset):
        sessions: set[str] = set()
        for number, line in enumerate(frame.data.splitlines()):
            head = _HEAD.match(line)
            if head:
                sessions.add(head[1].decode())
                continue
            record = cast("dict[str, Any]", json.loads(line))
            if record["type"] == "rollout":
                _put_rollout(db, path.name, frame, number, record)
            else:
                sessions.add(str(record["session"]))
            if record["type"] == "session":
                row = (record["session"], record["at"], json.dumps(record["labels"]), path.name)
                db.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?, ?)", row)
        rows = [(session, path.name, frame.offset, frame.size) for session in sessions]
        db.executemany("INSERT OR IGNORE INTO frames VALUES (?, ?, ?, ?)", rows)
        offset = frame.offset + frame.size
    db.execute("INSERT OR REPLACE INTO segments VALUES (?, ?)", (path.name, offset))


def _put_rollout(db: sqlite3.Connection, segment: str, frame: Frame, line: int, record: dict[str, Any]) -> None:
    failure = cast("dict[str, Any]", record.get("failure") or {})
    facts: dict[str, Any] = {
        **{name: record.get(name) for name in _ROLLOUT_COLUMNS},
        "segment": segment, "offset": frame.offset, "size": frame.size, "line": line,
        "failure": failure.get("seam"), "failure_reason": failure.get("reason"),
        "seconds": sum(record["seconds"].values()),
        "labels": json.dumps(record["labels"]), "sessions": json.dumps(record["sessions"]),
    }  # fmt: skip
    db.execute(_PUT_ROLLOUT, [facts[name] for name in _ROLLOUT_COLUMNS])
    closed = [(session, record["id"], segment) for session in record["sessions"]]
    db.executemany("INSERT OR IGNORE INTO closed VALUES (?, ?, ?)", closed)


def _label(labels: str, name: str) -> str | None:
    return cast("dict[str, str]", json.loads(labels)).get(name)


def check_where(error: sqlite3.Error, where: str) -> InvalidArgument:
    """Return the typed error for a query that SQLite refuses."""
    return InvalidArgument(f"the query {where!r} is refused: {error}", field="where")
