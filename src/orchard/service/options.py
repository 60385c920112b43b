"""What a service is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServiceOptions:
    """Settings of one service."""

    keys_path: Path | None
    """The keys file; None: no keys at all, every caller is the one tenant ``default``."""
    allow_host_images: bool = False
    """Let callers name ``host`` and ``dir:``, which show folders of this machine, and all that the next one lets."""
    allow_image_files: bool = False
    """Let callers name ``oci:``, ``oci-archive:``, ``docker-archive:`` and ``docker-daemon:``: images that are read
    from files of this machine or from its Docker daemon."""
