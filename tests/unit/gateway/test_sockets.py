"""The folder of the sessions' sockets, beside other gateways that begin at the same moment."""

import fcntl
import tempfile
from pathlib import Path

import pytest

from orchard.gateway.sockets import SocketFolder


def test_a_folder_that_another_sweeps_before_it_is_locked_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, others = fcntl.flock, list[SocketFolder]()

    def late(held: int, how: int) -> None:
        if not others:
            monkeypatch.setattr(fcntl, "flock", lock)
            others.append(SocketFolder())
        lock(held, how)

    with tempfile.TemporaryDirectory(prefix="o-") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        monkeypatch.setattr(fcntl, "flock", late)
        ours = SocketFolder()
        assert sorted(Path(base).iterdir()) == sorted([ours.path, others[0].path])
        for folder in (ours, *others):
            folder.close()
        assert list(Path(base).iterdir()) == []
