"""What the environment says of folders."""

from pathlib import Path

import pytest

from orchard.core.config import cache_dir, data_dir


def test_folders_named_from_the_present_one_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHARD_HOME", "state")
    monkeypatch.setenv("ORCHARD_CACHE", "cache")
    assert (data_dir(), cache_dir()) == (tmp_path / "state", tmp_path / "cache")
