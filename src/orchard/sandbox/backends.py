"""Which kinds of backend there are. Each is imported when it is used; a new one is one line here."""

from __future__ import annotations

from collections.abc import Callable

from orchard.core.errors import InvalidArgument
from orchard.sandbox.protocol import Backend


def _local(url: str | None, api_key: str | None) -> Backend:
    from orchard.sandbox.local import LocalBackend

    return LocalBackend()


def _remote(url: str | None, api_key: str | None) -> Backend:
    from orchard.sandbox.remote import RemoteBackend

    if url is None:
        raise InvalidArgument("the remote backend needs the service's URL", field="url")
    return RemoteBackend(url, api_key=api_key)


def _kubernetes(url: str | None, api_key: str | None) -> Backend:
    from orchard.sandbox.kubernetes import KubernetesBackend

    return KubernetesBackend()


BACKENDS: dict[str, Callable[[str | None, str | None], Backend]] = {
    "local": _local, "remote": _remote, "kubernetes": _kubernetes,
}  # fmt: skip
"""Name -> factory of (service URL, API key)."""


def open_backend(name: str, *, url: str | None = None, api_key: str | None = None, direct: bool = False) -> Backend:
    """Return a new backend of the kind ``name``.

    Raises:
        InvalidArgument: no such kind, or ``direct`` for one that is no service.
    """
    if direct and (name != "remote" or url is None):
        raise InvalidArgument("direct needs the URL of a service", field="direct", hint="set ORCHARD_URL")
    if direct:
        from orchard.sandbox.remote import RemoteBackend

        return RemoteBackend(url or "", api_key=api_key, direct=True)
    if name not in BACKENDS:
        raise InvalidArgument(f"backend must be one of {', '.join(sorted(BACKENDS))}, not {name!r}", field="backend")
    return BACKENDS[name](url, api_key)
