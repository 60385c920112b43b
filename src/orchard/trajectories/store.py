"""The append-only store of records: durable when ``append`` returns, queried without loading it.

One folder: ``segments/`` is the truth (see ``segments``), ``index.sqlite`` a cache of it. Any number of processes
write and read at the same time.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from orchard.core.errors import NotFound
from orchard.core.text import carried
from orchard.trajectories.commit import Committer
from orchard.trajectories.index import Index, check_where
from orchard.trajectories.records import RECORD, AnyRecord, RolloutRecord
from orchard.trajectories.segments import (
    SEGMENT_BYTES,
    Damage,
    find_damage,
    is_live,
    make_folder,
    read_frame,
    read_frames,
    segment_paths,
    store_error,
)
from orchard.trajectories.trajectory import Trajectory, join


@dataclass(frozen=True)
class RolloutRow:
    """What the index knows of a rollout; ``Store.rollout`` gives the whole record."""

    id: str
    run: str
    task: str
    attempt: int
    tries: int
    harness: str
    policy: str
    policy_version: str | None
    model: str
    stop: str | None
    reward: float | None
    failure: str | None
    """The seam that failed, or None."""
    failure_reason: str | None
    turns: int
    started_at: datetime
    seconds: float
    """Sum over the stages."""
    labels: dict[str, str]
    sessions: list[str]


@dataclass(frozen=True)
class SessionRow:
    """A session without a closing record."""

    session: str
    at: datetime
    labels: dict[str, str]
    live: bool
    """Its writer still lives, so it may yet be closed."""


_COLUMNS = ", ".join(RolloutRow.__dataclass_fields__)


class Store:
    """A folder of records.

    Args:
        path: the folder; made if missing.
        segment_bytes: size beyond which a writer begins another file.

    Raises:
        StoreFailed: the folder cannot be made.
    """

    def __init__(self, path: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = path
        self._segments = path / "segments"
        try:
            make_folder(self._segments)
        except OSError as error:
            raise store_error(f"cannot make {self._segments}", error) from error
        self._committer = Committer(self._segments, segment_bytes)
        self._index = Index(path / "index.sqlite", self._segments)

    async def append(self, record: AnyRecord) -> None:
        """Return when ``record`` is on disk (written and synced; concurrent calls share one sync).

        Cancelling stops the waiting, not the writing.

        Raises:
            StoreFailed: it is not there (``no_space``, ``denied``, ``io``, ``closed``); may be tried again.
        """
        await asyncio.wrap_future(self._committer.submit(dump(record)))

    def append_now(self, record: AnyRecord) -> None:
        """Like ``append``, for code without an event loop."""
        future: Future[None] = self._committer.submit(dump(record))
        future.result()

    def close(self) -> None:
        """Write what is pending and release this writer's file. Reading still works."""
        self._committer.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def rollouts(
        self, where: str = "", params: Sequence[Any] = (), *, order: str = "started_at, id", limit: int | None = None
    ) -> Iterator[RolloutRow]:
        """Yield the rollouts for which the SQL condition ``where`` holds; blocks on the disk.

        Columns are the fields of ``RolloutRow``; ``label(labels, 'NAME')`` is one label. Example:
        ``rollouts("run = ? AND reward >= ? AND failure IS NULL", ["nightly", 0.5])``.

        Raises:
            InvalidArgument: SQLite refuses the condition.
        """
        sql = f"SELECT {_COLUMNS} FROM rollouts" + (f" WHERE {where}" if where else "") + f" ORDER BY {order}"
        with self._index.query() as db:
            try:
                for row in db.execute(sql + (f" LIMIT {int(limit)}" if limit is not None else ""), params):
                    yield _row(row)
            except sqlite3.Error as error:
                raise check_where(error, where) from error

    def rollout(self, rollout_id: str) -> RolloutRecord:
        """Return the closing record of a rollout.

        Raises:
            NotFound: there is none.
            StoreFailed: ``damaged``.
        """
        sql = "SELECT segment, offset, size, line FROM rollouts WHERE id = ?"
        with self._index.query() as db:
            found = db.execute(sql, (rollout_id,)).fetchone()
        if found is None:
            raise NotFound(f"no rollout {rollout_id} in {self.path}")
        segment, offset, size, line = found
        lines = read_frame(self._segments / str(segment), int(offset), int(size)).splitlines()
        return cast("RolloutRecord", load(lines[int(line)]))

    def trajectory(self, rollout_id: str) -> Trajectory:
        """Return a rollout with all calls of all its sessions.

        Raises:
            NotFound: there is no such rollout.
            StoreFailed: ``damaged``.
        """
        rollout = self.rollout(rollout_id)
        session = rollout.sessions[-1] if rollout.sessions else ""
        return join(self._of_sessions(rollout.sessions), rollout, session)

    def session(self, session: str) -> Trajectory:
        """Return what was recorded under one session, closed or not.

        Raises:
            NotFound: nothing was.
        """
        records = self._of_sessions([session])
        if not records:
            raise NotFound(f"no session {session} in {self.path}")
        return join(records, None, session)

    def aborted(self) -> list[SessionRow]:
        """Return the sessions without a closing record: kept, never trained. Those with ``live`` may yet be closed."""
        sql = "SELECT session, at, labels, segment FROM sessions WHERE session NOT IN (SELECT session FROM closed)"
        with self._index.query() as db:
            rows = db.execute(sql + " ORDER BY at").fetchall()
        live = {name: is_live(self._segments / name) for name in {row[3] for row in rows}}
        return [
            SessionRow(session, datetime.fromisoformat(at), json.loads(labels), live[segment])
            for session, at, labels, segment in rows
        ]

    def records(self) -> Iterator[AnyRecord]:
        """Yield every record, segment by segment, one frame in memory at a time."""
        for path in segment_paths(self._segments):
            for frame in read_frames(path):
                for line in frame.data.splitlines():
                    yield load(line)

    def damage(self) -> list[Damage]:
        """Return what cannot be read of the files whose writers are gone: torn tails, and harm done later."""
        gone = [path for path in segment_paths(self._segments) if not is_live(path)]
        return [one for path in gone for one in find_damage(path)]

    def _of_sessions(self, sessions: Sequence[str]) -> list[AnyRecord]:
        marks = ", ".join("?" * len(sessions))
        sql = f"SELECT DISTINCT segment, offset, size FROM frames WHERE session IN ({marks}) ORDER BY segment, offset"
        with self._index.query() as db:
            frames = db.execute(sql, list(sessions)).fetchall()
        wanted = {json.dumps(session).encode() for session in sessions}
        found: list[AnyRecord] = []
        for segment, offset, size in frames:
            for line in read_frame(self._segments / segment, offset, size).splitlines():
                if any(name in line for name in wanted):
                    record = load(line)
                    if not isinstance(record, RolloutRecord) and record.session in sessions:
                        found.append(record)
        return found


def dump(record: AnyRecord) -> bytes:
    """Return the line of a record: JSON in ASCII, so that any text a model or harness sends survives."""
    facts = record.model_dump(mode="python")
    head = {key: facts.pop(key) for key in ("type", "session") if key in facts}
    line = json.dumps({**head, **facts}, default=datetime.isoformat)
    if "\\ud" in line:  # a pair, or a half that other readers of JSON would refuse
        line = json.dumps(carried({**head, **facts}), default=datetime.isoformat)
    return line.encode() + b"\n"


def load(line: bytes) -> AnyRecord:
    """Return the record of a line."""
    return RECORD.validate_python(json.loads(line))


def _row(row: Sequence[Any]) -> RolloutRow:
    facts = dict(zip(RolloutRow.__dataclass_fields__, row, strict=True))
    facts["started_at"] = datetime.fromisoformat(facts["started_at"])
    facts["labels"], facts["sessions"] = json.loads(facts["labels"]), json.loads(facts["sessions"])
    return RolloutRow(**facts)
