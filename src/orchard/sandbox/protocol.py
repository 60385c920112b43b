"""The seam between what users hold and what makes sandboxes.

A backend creates, finds and ends sandboxes, and says how each is reached (an ``Endpoint``). All that happens *in* a
sandbox — commands, files, tunnels, the lease — goes over that endpoint in the wire of sandboxd and is written once,
above this seam. Adding a backend is one file that fulfils ``Backend`` and one line in ``BACKENDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from orchard.core.errors import QuotaExceeded
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec


@dataclass(frozen=True)
class Capabilities:
    """What a backend cannot do, by name with the reason; what is not named here works."""

    exceptions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Feature (``network=open``, ``pause``, ``snapshot``, ``disk``, ``pty``, ``commit`` …) -> reason."""


class Backend(Protocol):
    """Makes sandboxes. All methods may raise ``Unavailable``; none leaves anything behind when it raises."""

    @property
    def name(self) -> str:
        """Short name of the kind: ``local``, ``kubernetes``, ``remote``."""
        ...

    async def capabilities(self) -> Capabilities:
        """Return what this backend, on this machine, cannot do."""
        ...

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        """Make a sandbox and return once a command works in it.

        The same ``key`` again returns the same sandbox.

        Raises:
            CreateFailed: with the reason; nothing is left of it.
            Conflict: another spec under the same key.
            Unsupported: the spec asks for what this backend cannot do.
        """
        ...

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return what is known, also after the end (``State.GONE``, with the reason), for an hour at least.

        Raises:
            NotFound: no such sandbox.
        """
        ...

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return living sandboxes whose labels include ``labels``, oldest first."""
        ...

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        """End it; with ``wait``, return once no process, mount, namespace, cgroup or file of it is left.

        Deleting what has already ended is fine.

        Raises:
            NotFound: no such sandbox, ever.
        """
        ...

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Return how to reach it.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended; with the reason.
        """
        ...

    async def commit(self, sandbox_id: str, name: str) -> str:
        """Stop the sandbox, turn its layer of changes into an image layer over its image.

        Returns the new image's digest (``sha256:…``), usable as ``image`` on this backend; ``name`` is an extra name.
        The same commit again, as after a lost answer, returns the same digest.
        """
        ...

    async def resolve_image(self, image: str) -> str | None:
        """Fetch the image if needed; return its digest, or None where it has none (``host``, ``dir:``).

        Raises:
            CreateFailed: image_not_found, image_auth, image_invalid, wrong_arch, registry_unreachable.
        """
        ...

    async def close(self) -> None:
        """Release what this object holds. Sandboxes live on."""
        ...


@runtime_checkable
class Shared(Protocol):
    """What a backend adds over which several services make sandboxes at once."""

    async def create_within(self, spec: SandboxSpec, key: str, most: int) -> SandboxInfo:
        """As ``Backend.create``, if the tenant of the spec has fewer than ``most`` alive, whoever made them.

        Raises:
            QuotaExceeded: it has as many already; nothing is left of this one.
        """
        ...

    async def living(self) -> int:
        """Return how many live, whoever made them; none of them is asked."""
        ...

    def leave(self) -> None:
        """Let creates that are cancelled from now on go on: this service stops, and their clients ask another one.

        What nobody asks for again ends by its own times.
        """
        ...


def no_room(tenant: str, most: int) -> QuotaExceeded:
    """Return the error of a tenant whose quota is used up."""
    return QuotaExceeded(
        f"tenant {tenant!r} may have {most} sandboxes alive at once", hint="delete some, or ask for a larger quota"
    )


BackendFactory = Callable[[], Backend]
