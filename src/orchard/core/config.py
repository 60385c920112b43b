"""The only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def env(name: str, default: str | None = None) -> str | None:
    """Return the environment variable ``name``, or ``default`` where it is unset or empty."""
    return os.environ.get(name) or default


def base_env() -> Mapping[str, str]:
    """Return a read-only view of the whole environment, for child processes that inherit parts of it."""
    return dict(os.environ)


def data_dir() -> Path:
    """Return where Orchard keeps its state: ``ORCHARD_HOME``, else the user's data folder. Not made here."""
    home = env("ORCHARD_HOME")
    return Path(home).absolute() if home else Path(platformdirs.user_data_dir("orchard"))


def cache_dir() -> Path:
    """Return where Orchard keeps what can be made again: ``ORCHARD_CACHE``, else the user's cache folder."""
    cache = env("ORCHARD_CACHE")
    return Path(cache).absolute() if cache else Path(platformdirs.user_cache_dir("orchard"))
