"""The seam of the tasks room: a reference goes in, sources of tasks come out, each of which prepares one task.

Adding a task kind is a file that offers a ``Loader`` and a line in ``orchard.tasks.registry``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchard.sandbox import Orchard
from orchard.tasks.model import Task


@dataclass(frozen=True)
class LoadOptions:
    """What a caller may set for every task that a reference names."""

    image: str | None = None
    """Base image for kinds that build on one (release pairs); None: the small Debian that Orchard makes."""


class TaskSource(Protocol):
    """A task that is known by its id, and not necessarily prepared yet."""

    @property
    def id(self) -> str:
        """The task's id, known without network and without a sandbox."""
        ...

    async def prepare(self, orchard: Orchard) -> Task:
        """Return the task, its image made: an image by digest, cached by all that went into it.

        The same source may be prepared again at any time; the second time is quick.

        Raises:
            TaskRefused: it makes no sound task; the reason says why. Trying again does not help.
            OrchardError: infrastructure trouble; trying again may help.
        """
        ...


class Loader(Protocol):
    """Turns a reference of its kind into sources."""

    def __call__(self, reference: str, options: LoadOptions) -> Sequence[TaskSource]:
        """Return the sources that ``reference`` names, in order.

        Raises:
            InvalidArgument: the reference, or a file it names, is wrong; file and key are named.
        """
        ...
