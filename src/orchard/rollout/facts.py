"""What decides the results of a run, kept beside its records, so that a resume never mixes two settings in silence."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchard.core.disk import needs_room
from orchard.core.errors import Conflict
from orchard.tasks.model import Task

Digests = dict[str, str]


class Facts:
    """A file of digests, a line for each thing (a task, a harness, a policy); nothing of a task can be read from it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        raw = file.read_bytes() if file.exists() else b""
        self._size = raw.rfind(b"\n") + 1  # a line that a kill or a full disk cut short is as if it had never been
        self._known: dict[str, Digests] = dict(json.loads(line) for line in raw[: self._size].splitlines())

    def knows(self, thing: str) -> bool:
        """True if the run has used ``thing``."""
        return thing in self._known

    def hold(self, things: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what is new among ``things``: name -> part -> JSON-serialisable value.

        Raises:
            Conflict: a part of a thing differs from what the run was made with; nothing is kept.
        """
        given = {thing: {part: _digest(value) for part, value in parts.items()} for thing, parts in things.items()}
        changed = [
            f"{thing}: {', '.join(parts)}" for thing, new in given.items() if (parts := self._changed(thing, new))
        ]
        if changed:
            raise Conflict(
                f"the run in {self._file.parent} was made with other settings ({'; '.join(changed)})",
                hint="choose another --run folder, or give it what it was made with",
            )
        new = {thing: parts for thing, parts in given.items() if thing not in self._known}
        if new:
            with needs_room(self._file.parent), self._file.open("ab") as file:
                file.truncate(self._size)
                file.writelines(json.dumps([thing, parts]).encode() + b"\n" for thing, parts in new.items())
                file.flush()
                os.fsync(file.fileno())
                self._size = file.tell()
            self._known |= new

    def _changed(self, thing: str, new: Digests) -> list[str]:
        old = self._known.get(thing, {})
        return sorted(part for part in old.keys() & new.keys() if old[part] != new[part])


def task_facts(task: Task) -> dict[str, Any]:
    """Return the parts of a prepared task that decide what comes of it; ``image`` is a digest."""
    return task.model_dump(mode="json", exclude={"id", "kind", "source"})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
