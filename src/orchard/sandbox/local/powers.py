"""The rights with which the host side works: real root, or root of a user namespace of sub-uids."""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchard.core.errors import MachineUnfit
from orchard.sandbox.local.process import QUIET_ENV, Finished, call

_MOST_IDS = 65536
"""Ids of a sandbox; a nested map is cut where the outer one is."""


@dataclass(frozen=True)
class IdRange:
    """Ids ``first`` … ``first + count - 1`` of the host that the user may map."""

    first: int
    count: int


@dataclass(frozen=True)
class Powers:
    """How helpers that mount, own files of others or start sandboxes are run."""

    uids: IdRange | None = None
    """None: we are root, and helpers run as they are."""
    gids: IdRange | None = None

    @property
    def rootless(self) -> bool:
        """True for an ordinary user with sub-uids."""
        return self.uids is not None

    def call(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] = QUIET_ENV,
        fds: Sequence[int] = (),
        log: Path | None = None,
    ) -> Finished:
        """Run a helper as root, real or mapped; arguments as of ``process.call``."""
        return call(argv, timeout=timeout, env=env, fds=fds, log=log, gate=self._map if self.rootless else None)

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder whatever owns its files; a missing one is fine."""
        if not self.rootless:
            shutil.rmtree(folder, ignore_errors=not folder.exists())
        elif folder.exists():
            done = self.call(["rm", "-rf", "--one-file-system", "--", str(folder)], timeout=600)
            if done.code:
                raise OSError(f"{folder} could not be removed: {done.output.strip()}")

    def _map(self, pid: int) -> None:
        for tool, own, more in (("newuidmap", os.getuid(), self.uids), ("newgidmap", os.getgid(), self.gids)):
            assert more is not None
            whole = ["0", str(own), "1", "1", str(more.first), str(more.count)]
            done = call([tool, str(pid), *whole], timeout=20)
            if done.code:
                raise MachineUnfit(
                    f"{tool} refused the map {' '.join(whole)}: {done.output.strip()}", hint=_subid_hint()
                )


def find_powers() -> Powers:
    """Return the rights of this process.

    Raises:
        MachineUnfit: an ordinary user without sub-uids, or without the tools that map them.
    """
    if os.getuid() == 0:
        return Powers()
    if not shutil.which("newuidmap") or not shutil.which("newgidmap"):
        raise MachineUnfit("An ordinary user needs newuidmap and newgidmap", hint="sudo apt-get install uidmap")
    return Powers(_range(Path("/etc/subuid"), os.getuid()), _range(Path("/etc/subgid"), os.getgid()))


def _range(table: Path, number: int) -> IdRange:
    names = {_user_name(), str(os.getuid())}
    lines = table.read_text().splitlines() if table.exists() else []
    for line in lines:
        name, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if name in names and first.isdigit() and count.isdigit():
            return IdRange(int(first), min(int(count), _MOST_IDS))
    raise MachineUnfit(f"{table} gives the user {_user_name()} ({number}) no ids of its own", hint=_subid_hint())


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return str(os.getuid())


def _subid_hint() -> str:
    return f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {_user_name()}"
