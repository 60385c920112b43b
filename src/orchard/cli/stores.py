"""Finding a store, and what was recorded in it under an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from orchard.cli import console
from orchard.core.config import data_dir
from orchard.core.errors import NotFound

if TYPE_CHECKING:
    from orchard.trajectories import Store, Trajectory

T = TypeVar("T")


def default_store() -> Path:
    """Return where commands record, and look, if they are told no other folder."""
    return data_dir() / "trajectories"


def open_store(folder: Path | None) -> Store:
    """Return the store in ``folder``, or in that of a run.

    Raises:
        NotFound: there is none.
    """
    from orchard.trajectories import Store

    folder = folder or default_store()
    for place in (folder, folder / "store"):
        if (place / "segments").is_dir():
            return Store(place)
    raise NotFound(f"there is no store in {folder}", hint="name it, or the folder of a run, with --store")


def recorded(store: Store, name: str) -> Trajectory:
    """Return what was recorded under the id of a rollout or a session.

    Raises:
        NotFound: nothing was.
    """
    return store.session(name) if name.startswith("se-") else store.trajectory(name)


class Odd:
    """Counts records that cannot be taken, so that one of them does not cost all others."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, name: str, done: str, make: Callable[[], Iterable[T]]) -> list[T]:
        """Return what ``make`` makes of a record; nothing, and a line on stderr, where it cannot be ``done``."""
        try:
            return list(make())
        except Exception as fault:  # the seam to records of any writer and age: an odd one is named, and costs no other
            if console.debugging():
                raise
            self._count += 1
            console.say(f"error: {name} cannot be {done}: {type(fault).__name__}: {fault}")
            return []

    def tell(self) -> None:
        """End the command with 1, and how many there were, if there were any."""
        if self._count:
            console.say(f"{self._count} left out; --debug shows where the first one fails")
            raise typer.Exit(1)


def every(store: Store) -> Iterator[Trajectory]:
    """Yield all rollouts, then the sessions that belong to none; one in memory at a time."""
    for row in store.rollouts():
        yield store.trajectory(row.id)
    for row in store.aborted():
        yield store.session(row.session)
