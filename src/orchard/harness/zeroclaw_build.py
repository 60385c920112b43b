"""``python -m orchard.harness.zeroclaw_build``: build ZeroClaw from its source, once, into the cache (12 minutes)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from orchard.core.config import base_env, cache_dir
from orchard.core.errors import MachineUnfit
from orchard.core.scratch import locked

VERSION = "0.8.7"
_PROFILE: Mapping[str, str] = {"LTO": "off", "CODEGEN_UNITS": "16", "OPT_LEVEL": "1"}
"""It waits for models and commands, so a quick build serves."""


def program() -> Path:
    """Return where the program lies once it is built."""
    return cache_dir() / "harness" / f"zeroclaw-{VERSION}" / "bin" / "zeroclaw"


def build() -> Path:
    """Build it unless it is there; any number of processes may call this at once. Blocks for minutes.

    Raises:
        MachineUnfit: there is no cargo, or it fails.
    """
    cargo, built = shutil.which("cargo"), program()
    root = built.parents[1]
    with locked(root.with_name(f"{root.name}.lock")):
        if not built.is_file():
            if cargo is None:
                raise MachineUnfit("ZeroClaw is built from its source, and there is no cargo", hint="install Rust")
            _cargo(cargo, root)
    return built


def _cargo(cargo: str, root: Path) -> None:
    argv = [
        cargo, "install", "zeroclaw", "--version", VERSION, "--ignore-rust-version", "--root", str(root),
        "--no-default-features", "--features", "agent-runtime",
    ]  # fmt: skip
    profile = {f"CARGO_PROFILE_RELEASE_{key}": value for key, value in _PROFILE.items()}
    if subprocess.run(argv, env={**base_env(), **profile}, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise MachineUnfit("cargo could not build ZeroClaw: its words are above")


if __name__ == "__main__":
    build()
