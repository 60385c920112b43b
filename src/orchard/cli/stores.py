"""Finding a store, and what was recorded in it under an id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchard.core.config import data_dir
from orchard.core.errors import NotFound

if TYPE_CHECKING:
    from orchard.trajectories import Store, Trajectory


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


def every(store: Store) -> Iterator[Trajectory]:
    """Yield all rollouts, then the sessions that belong to none; one in memory at a time."""
    for row in store.rollouts():
        yield store.trajectory(row.id)
    for row in store.aborted():
        yield store.session(row.session)
