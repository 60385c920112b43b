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
    """Let callers name ``host``, ``dir:`` and other images that are read from this machine's own files."""
