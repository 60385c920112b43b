"""Which images a caller may name. The store of images is one for all tenants, so names in it need an owner."""

from __future__ import annotations

from orchard.core.errors import InvalidArgument
from orchard.service.keys import Caller, KeyRing
from orchard.service.options import ServiceOptions

_FILES = frozenset({"oci", "oci-archive", "docker-archive", "docker-daemon", "containers-storage"})


class ImageRules:
    """Decides about images by their names, before any backend sees them."""

    def __init__(self, options: ServiceOptions, keys: KeyRing | None) -> None:
        self._options, self._keys = options, keys

    def check(self, image: str, caller: Caller) -> None:
        """Return if a caller may use ``image``.

        Raises:
            InvalidArgument: it is read from this machine's own files, or another tenant made it.
        """
        kind, colon, _ = image.partition(":")
        host = image == "host" or (kind == "dir" and bool(colon))
        files = kind in _FILES and bool(colon)
        allowed = self._options.allow_host_images or (files and self._options.allow_image_files)
        if (host or files) and not allowed:
            flag = "--allow-host-images" if host else "--allow-image-files"
            raise InvalidArgument(
                f"images of the kind {kind!r} are read from the service's own machine, which is not allowed here",
                field="image", hint=f"start it with `orchard serve {flag}`, or import the image there first",
            )  # fmt: skip
        if _owner(image) in self._others(caller):
            raise InvalidArgument(f"images below {_owner(image)!r} belong to another tenant", field="image")

    def check_new(self, name: str, caller: Caller) -> None:
        """Return if a caller may give an image this name.

        Where there are several tenants, names begin with the tenant's: else one could put its own image in the place of
        ``python:3.12`` for all.

        Raises:
            InvalidArgument: the name does not begin so.
        """
        if self._others(caller) and not name.startswith(f"{caller.tenant}/"):
            raise InvalidArgument(
                f"the name of an image must begin with {caller.tenant + '/'!r} here", field="name",
                hint="the digest in the answer needs no name",
            )  # fmt: skip

    def _others(self, caller: Caller) -> frozenset[str]:
        return (self._keys.tenants if self._keys else frozenset[str]()) - {caller.tenant}


def _owner(image: str) -> str:
    first, slash, rest = image.removeprefix("localhost/").partition("/")
    return first if slash and rest else ""
