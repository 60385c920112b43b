"""The folder of one run: its id, the store of its records, and a lock that dies with the process."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import zstandard

from orchard.core.disk import needs_room
from orchard.core.errors import Conflict, InvalidArgument
from orchard.core.ids import check_id, new_id
from orchard.core.scratch import publish
from orchard.rollout.facts import Facts
from orchard.trajectories import RolloutRecord, Store

FACTS = "facts.jsonl"
_OURS = ("scratch", "store", "native", FACTS, "report.json", "report.html")
"""What a run removes or writes over in its folder."""
NATIVE = "native_trajectory"
"""Key in a record's environment: where in the run's folder the harness's own trajectory file lies."""


@dataclass(frozen=True)
class RunFolder:
    """An open run. ``id`` stays the same when the run is resumed; it is the label ``run`` of its sandboxes."""

    path: Path
    id: str
    store: Store
    facts: Facts
    """What its closed rollouts were made with."""

    @property
    def scratch(self) -> Path:
        """For files of a rollout that is under way."""
        return self.path / "scratch"

    def keep_native(self, session: str, file: Path) -> str:
        """Compress a harness's own trajectory file into the run; return where it lies in it. Blocks on the disk.

        Raises:
            MachineUnfit: the disk is full.
        """
        kept = self.path / "native" / f"{session}{file.suffix}.zst"
        with needs_room(self.path):
            kept.parent.mkdir(exist_ok=True)
            with file.open("rb") as source, kept.open("wb") as target:
                zstandard.ZstdCompressor().copy_stream(source, target)
        return str(kept.relative_to(self.path))

    def native(self, record: RolloutRecord) -> bytes | None:
        """Return the harness's own trajectory file of a rollout; None where it wrote none."""
        name = record.environment.get(NATIVE)
        if not isinstance(name, str):
            return None
        with (self.path / name).open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as plain:
            return plain.read()

    def closed(self, *, broken: bool = True) -> set[str]:
        """Return the ids of the rollouts that have a closing record; without those that failed if not ``broken``."""
        where = "run = ?" if broken else "run = ? AND failure IS NULL"
        return {row.id for row in self.store.rollouts(where, [self.id])}

    def records(self) -> Iterator[RolloutRecord]:
        """Yield the closing records, by task, harness, policy and attempt."""
        for row in self.store.rollouts("run = ?", [self.id], order="task, harness, policy, attempt"):
            yield self.store.rollout(row.id)


@contextmanager
def open_run(path: Path) -> Iterator[RunFolder]:
    """Open the run at ``path``, made if there is none.

    Raises:
        Conflict: another process has it open.
        InvalidArgument: ``path`` holds something else.
    """
    path = path.absolute()  # harnesses work in folders of their own, where a relative path leads elsewhere
    path.mkdir(parents=True, exist_ok=True)
    _refuse_others(path)
    with (path / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another process works on the run in {path}", hint="wait for it, or choose another folder"
            ) from error
        run_id = _identity(path / "run.json")
        shutil.rmtree(path / "scratch", ignore_errors=True)  # of a process that was killed: the lock is ours now
        (path / "scratch").mkdir()
        try:
            with Store(path / "store") as store:
                if next(store.rollouts("run = ?", [run_id], limit=1), None) is None:
                    (path / FACTS).unlink(missing_ok=True)  # nothing was made with them
                yield RunFolder(path, run_id, store, Facts(path / FACTS))
        finally:
            shutil.rmtree(path / "scratch", ignore_errors=True)


@contextmanager
def read_run(path: Path) -> Iterator[RunFolder]:
    """Open the run at ``path`` for reading, also while a process works on it.

    Raises:
        InvalidArgument: there is none.
    """
    if not (path / "run.json").is_file():
        raise InvalidArgument(f"{path} holds no run", field="run", hint="give the folder that --run named")
    with Store(path / "store") as store:
        yield RunFolder(path, _identity(path / "run.json"), store, Facts(path / FACTS))


def _refuse_others(path: Path) -> None:
    """Refuse a folder that is no run's and has what a run would remove. Every run has its mark before anything else."""
    found = next((name for name in _OURS if (path / name).exists()), None)
    if found and not (path / "run.json").exists():
        raise InvalidArgument(
            f"{path} holds {found}, which is no run's", field="run", hint="choose a folder that is new or empty"
        )


def _identity(file: Path) -> str:
    if not file.exists():
        publish(file, json.dumps({"run": new_id("run"), "version": 1}).encode())
    try:
        return check_id(json.loads(file.read_text())["run"], "run")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{file} is not the mark of a run: {error}", field="run") from error
