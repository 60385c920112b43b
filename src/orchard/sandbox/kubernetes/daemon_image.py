"""The image that brings the daemon into Pods: nothing but ``/sandboxd``."""

from __future__ import annotations

from pathlib import Path

from orchard.sandbox.layout import ARCHITECTURE, Image, Node, write_layout


def write_daemon_image(binary: Path, folder: Path, architecture: str = ARCHITECTURE) -> str:
    """Write the image as an OCI layout into ``folder``; return what skopeo calls it.

    Args:
        binary: sandboxd, static, built for ``architecture``.
        folder: made here.
        architecture: in the words of images: ``amd64``, ``arm64``.
    """
    config = {"Entrypoint": ["/sandboxd"]}
    return write_layout(Image((Node("sandboxd", binary.read_bytes(), 0o755),), config, architecture), folder)
