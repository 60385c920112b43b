"""Images held to what they are now, in a name that every backend takes."""

from __future__ import annotations

_OWN_STORE = ("sha256", "oci", "oci-archive", "docker-archive", "docker-daemon")
"""Kinds that end up in the backend's own store of images, where a digest is enough."""


def pinned(image: str, digest: str | None) -> str:
    """Return ``image`` by its digest, or itself where it has none.

    One of a registry keeps its repository, ``REPOSITORY@sha256:…``: a digest alone is looked for where sandboxes are
    committed to.
    """
    if digest is None:
        return image
    if image.partition(":")[0] in _OWN_STORE:
        return digest
    folder, slash, name = image.removeprefix("docker://").partition("@")[0].rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}@{digest}"
