"""Ending sandboxes, and sweeping what the dead have left: processes, cgroups, the runtime's state, folders."""

from __future__ import annotations

import contextlib
import errno
import json
from dataclasses import replace
from pathlib import Path

from orchard.core.errors import GONE_REASONS, InternalError, NotFound
from orchard.sandbox.local import cgroups
from orchard.sandbox.local.cgroups import Cgroups
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.process import Target, boot_id
from orchard.sandbox.local.records import Record, Store, now
from orchard.sandbox.local.settings import LocalSettings

_KILL_SECONDS = 30.0
_STRAY_AGE = 7200.0
"""Seconds after which empty control groups belong to no create that is still under way."""


class Endings:
    """Ends sandboxes of one home."""

    def __init__(self, settings: LocalSettings, store: Store, powers: Powers, groups: Cgroups | None) -> None:
        self._settings, self._store, self._powers, self._groups = settings, store, powers, groups
        self._boot = boot_id()
        self._seen: dict[str, Target] = {}
        """PID 1 of each sandbox that was alive at the last sweep; spares reading its record again."""

    def look(self, sandbox_id: str) -> Record:
        """Return its record; if its PID 1 has ended, the end is found out and written first.

        Where another sweeps it at this moment, the end is told as found out and left to that one to write.

        Raises:
            NotFound: no such sandbox.
        """
        record = self._store.read(sandbox_id)
        if record.ended_at or record.alive(self._boot):
            return record
        self._sweep_one(sandbox_id)
        record = self._store.read(sandbox_id)
        if record.ended_at or record.process is None or record.alive(self._boot):
            return record
        found = self._cause(record)
        written = self._store.read(sandbox_id)  # an end is written before anything that tells of its cause is removed
        return written if written.ended_at else found

    def delete(self, sandbox_id: str) -> bool:
        """End it now, wait for its processes and remove every trace. False while another process works on it.

        Raises:
            NotFound: no such sandbox, ever.
        """
        record = self._store.read(sandbox_id)
        with self._store.lock(sandbox_id) as held:
            if held:
                record = self._store.read(sandbox_id)
                if record.alive(self._boot):
                    self.stop(record)
                self.finish(self._store.read(sandbox_id))
                return True
        return not self._store.folder(sandbox_id).exists()

    def stop(self, record: Record, detail: str | None = None) -> None:
        """Write that it was ended by request, and kill all of it; the caller holds its lock."""
        if not record.ended_at:
            self._end(record.ended("deleted", detail))
        self._kill(record)

    def discard(self, record: Record) -> None:
        """Remove a sandbox that was never ready; the caller holds its lock. No record of it stays."""
        self._store.drop_key(record.key, record.id)
        self._remove(record)
        self._powers.remove_tree(self._store.folder(record.id))

    def sweep(self) -> None:
        """Remove what the dead have left, and records past their time. Living ones and half-made ones stay."""
        alive: dict[str, Target] = {}
        for sandbox_id in self._store.ids():
            process = self._seen.get(sandbox_id) or self._process(sandbox_id)
            if process is not None and process.alive():
                alive[sandbox_id] = process
            else:
                self._sweep_one(sandbox_id)
        self._seen = alive
        self._sweep_strays()
        self._store.forget_ended(self._settings.keep_ended)

    def _sweep_strays(self) -> None:
        """Remove the empty control groups of homes that were removed as a whole."""
        if self._groups is not None:
            for sandbox_id in self._groups.strays(_STRAY_AGE):
                with contextlib.suppress(OSError):  # another sweeper was first
                    cgroups.remove(self._groups.folders(sandbox_id), seconds=0)

    def _process(self, sandbox_id: str) -> Target | None:
        with contextlib.suppress(NotFound):  # made or removed this moment
            record = self._store.read(sandbox_id)
            return record.process if record.boot == self._boot and not record.ended_at else None
        return None

    def _sweep_one(self, sandbox_id: str) -> None:
        with self._store.lock(sandbox_id) as held:
            if not held:
                return
            try:
                record = self._store.read(sandbox_id)
            except NotFound:  # its maker died before the first record
                self._powers.remove_tree(self._store.folder(sandbox_id))
                return
            if record.alive(self._boot) and not record.ended_at:  # it became ready between the two looks
                return
            if record.ended_at or record.pid:
                self.finish(record)
            else:  # its maker died half-way: it never was
                self.discard(record)

    def finish(self, record: Record) -> None:
        """Write why it ended, where that is not written yet, and remove all of it; the caller holds its lock."""
        if not self._store.read(record.id).ended_at:
            self._end(self._cause(record))
        self._remove(record)
        self._powers.remove_tree(self._store.folder(record.id))

    def _end(self, record: Record) -> None:
        """Write an end. On a full disk the sandbox itself makes the room for it: else nothing could ever be deleted."""
        try:
            self._store.end(record)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._kill(record)
            for part in ("upper", "state"):
                self._powers.remove_tree(self._store.folder(record.id) / part)
            self._store.end(record)

    def _remove(self, record: Record) -> None:
        folders = [Path(folder) for folder in record.cgroups]
        self._kill(record)
        if record.boot == self._boot:
            if record.process is None:
                self._kill_unrecorded(record, folders)
            cgroups.remove(folders)
        Path(record.socket).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the short folder, where it was the last there; else the sandbox's own
            Path(record.socket).parent.rmdir()
        self._powers.remove_tree(self._settings.home / "runtime" / record.id)

    def _kill(self, record: Record) -> None:
        process = record.process
        if process is not None and record.boot == self._boot and not process.kill(_KILL_SECONDS):
            raise InternalError(f"PID 1 of sandbox {record.id} (pid {process.pid}) survives SIGKILL")

    def _kill_unrecorded(self, record: Record, folders: list[Path]) -> None:
        """Kill what a launch left that ended between the start of PID 1 and its being recorded."""
        state = self._settings.home / "runtime" / record.id / "state.json"
        if state.exists():
            self._powers.call(
                [self._settings.runtime, "--root", str(state.parent.parent), "kill", record.id, "KILL"], timeout=20
            )
        cgroups.kill_all(folders)

    def _cause(self, record: Record) -> Record:
        """Find out why a dead sandbox ended: its own word, the kernel's counters, or that nobody knows."""
        if record.boot != self._boot:
            return record.ended("node_lost", "the machine was started anew")
        if cgroups.oom_killed([Path(folder) for folder in record.cgroups]):
            return record.ended("oom", "the kernel ended sandboxd for want of memory")
        try:
            word = json.loads((self._store.folder(record.id) / "state" / "death.json").read_text())
        except FileNotFoundError:
            return record.ended("signal", "sandboxd ended without a word: killed from outside the sandbox")
        reason = str(word.get("reason"))
        known = reason if reason in GONE_REASONS else "unknown"
        return replace(record.ended(known, word.get("detail") or None, at=word.get("at") or now()))
