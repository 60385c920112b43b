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
_FIRST_ID = 100_000
"""Below it the system's own users have theirs."""
_UIDS, _GIDS = Path("/etc/subuid"), Path("/etc/subgid")


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
    return Powers(_range(_UIDS, os.getuid()), _range(_GIDS, os.getgid()))


def _range(table: Path, number: int) -> IdRange:
    for name, ids in _entries(table):
        if name in (_user_name(), str(os.getuid())):
            return IdRange(ids.first, min(ids.count, _MOST_IDS))
    raise MachineUnfit(f"{table} gives the user {_user_name()} ({number}) no ids of its own", hint=_subid_hint())


def _entries(table: Path) -> list[tuple[str, IdRange]]:
    lines = [line.strip().split(":") for line in table.read_text().splitlines()] if table.exists() else []
    return [
        (line[0], IdRange(int(line[1]), int(line[2])))
        for line in lines
        if len(line) == 3 and line[1].isdigit() and line[2].isdigit()
    ]


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return str(os.getuid())


def _subid_hint() -> str:
    """Return the command that gives the user ids that are nobody's yet."""
    first = max([_FIRST_ID, *(ids.first + ids.count for table in (_UIDS, _GIDS) for _, ids in _entries(table))])
    ids = f"{first}-{first + _MOST_IDS - 1}"
    return f"sudo usermod --add-subuids {ids} --add-subgids {ids} {_user_name()}"
