"""The image that a task stands on where it names none."""

from __future__ import annotations

import asyncio

from orchard.core.errors import InvalidArgument
from orchard.sandbox import Orchard

PACKAGES = ("ca-certificates", "git", "python3")


async def base_image(orchard: Orchard) -> str:
    """Return the digest of the small Debian with Python and git that Orchard makes, made if it is not there yet.

    Raises:
        InvalidArgument: the sandboxes are not on this machine, so an image must be named.
        MachineUnfit: it cannot be made here; the hint says how.
    """
    from orchard.sandbox.local import LocalBackend
    from orchard.sandbox.local.rootfs import build_debian_image

    backend = orchard.backend
    if not isinstance(backend, LocalBackend):
        raise InvalidArgument(
            f"the {backend.name} backend has no base image of its own",
            field="image",
            hint=f"name one that it can pull, with {', '.join(PACKAGES)}",
        )
    return await asyncio.to_thread(build_debian_image, PACKAGES, settings=backend.settings)
