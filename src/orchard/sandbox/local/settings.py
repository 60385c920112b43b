"""Where the local backend keeps its state, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchard.core.config import data_dir


def packaged_sandboxd() -> Path:
    """Return where ``make sandboxd`` and the wheel put the daemon."""
    return Path(__file__).parent.parent / "bin" / "sandboxd"


@dataclass(frozen=True)
class LocalSettings:
    """Settings of one local backend. Two processes may use one ``home`` at the same time."""

    home: Path = field(default_factory=data_dir)
    """Folder of all state; made on first use, for the owner only."""
    allow_host_dirs: bool = True
    """Accept the images ``host`` and ``dir:``, which show folders of this machine read-only. A service says no."""
    runtime: str = "runc"
    """OCI runtime: a name on PATH or a path."""
    sandboxd: Path = field(default_factory=packaged_sandboxd)
    """The daemon put into every sandbox."""
    launches: int = 4
    """Most sandboxes started at the same moment; further ones wait their turn."""
    keep_ended: float = 3600.0
    """Seconds for which the record of an ended sandbox stays."""
    sweep_every: float = 5.0
    """Seconds between two sweeps, which happen only while commands are given."""
    skopeo_policy: Path | None = None
    """Signature policy for skopeo; None accepts images as they are."""

    def __post_init__(self) -> None:
        """Keep the home's whole path: what is made in it works in folders of its own, where another lies."""
        object.__setattr__(self, "home", self.home.absolute())
