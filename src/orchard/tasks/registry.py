"""Kinds of tasks: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchard.core.errors import InvalidArgument
from orchard.tasks import toml
from orchard.tasks.protocol import Loader, LoadOptions, TaskSource
from orchard.tasks.release_pair import loader as release_pair

LOADERS: dict[str, Loader] = {
    "toml": toml.load,
    "release-pair": release_pair.load,
}
"""Kind -> loader. A reference is ``KIND:REST``; a path without a kind is ``toml``."""


def load_tasks(reference: str, *, image: str | None = None, only: Sequence[str] | None = None) -> Sequence[TaskSource]:
    """Return the sources that ``reference`` names.

    Args:
        reference: ``KIND:REST`` with a kind of ``LOADERS``, or the path of a ``task.toml`` or of a folder of them.
        image: base image for kinds that build on one.
        only: ids to keep; None keeps all.

    Raises:
        InvalidArgument: no such kind or path, nothing in it, an id twice, or an id of ``only`` that is not there.
    """
    if not reference.strip():  # an unset variable in a script; as a path it would be the current folder
        raise InvalidArgument("the reference to tasks is empty", field="tasks", hint="give . for the current folder")
    kind, colon, rest = reference.partition(":")
    if not colon or kind not in LOADERS:
        if not Path(reference).exists():
            kinds = ", ".join(f"{name}:…" for name in LOADERS)
            raise InvalidArgument(
                f"{reference!r} is neither a path nor of a known kind",
                field="tasks", hint=f"give a task.toml, a folder of them, or one of {kinds}",
            )  # fmt: skip
        kind, rest = "toml", reference
    elif not rest.strip():
        raise InvalidArgument(f"{reference!r} names nothing after its kind", field="tasks")
    return _checked(reference, LOADERS[kind](rest, LoadOptions(image=image)), only)


def _checked(reference: str, sources: Sequence[TaskSource], only: Sequence[str] | None) -> Sequence[TaskSource]:
    ids = [source.id for source in sources]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise InvalidArgument(f"{reference!r} names {', '.join(twice)} more than once", field="tasks")
    missing = sorted(set(only or ()) - set(ids))
    if missing:
        raise InvalidArgument(f"{reference!r} has no task {', '.join(missing)}", field="only")
    kept = [source for source in sources if only is None or source.id in only]
    if not kept:
        raise InvalidArgument(f"{reference!r} names no task", field="tasks")
    return kept
