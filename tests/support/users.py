"""Tests that become another user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def _others_may_enter(folder: Path) -> bool:
    return all(part.stat().st_mode & 0o005 == 0o005 for part in (folder, *folder.parents))


needs_open_checkout = pytest.mark.skipif(
    not all(_others_may_enter(path) for path in (REPOSITORY, Path(sys.executable).resolve().parent)),
    reason="the checkout or its Python lies in a folder that other users may not enter, such as root's home",
)
