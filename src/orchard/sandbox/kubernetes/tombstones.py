"""What is remembered of sandboxes whose Pod is gone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from orchard.sandbox.kubernetes.deaths import Death
from orchard.sandbox.types import SandboxInfo, State

_MOST = 10_000


class Tombstones:
    """The ends that this process has seen."""

    def __init__(self) -> None:
        self._graves: OrderedDict[str, SandboxInfo] = OrderedDict()

    async def bury(self, info: SandboxInfo, death: Death) -> SandboxInfo:
        """Keep how a sandbox ended; the first word stands. Return what is told of it from now on."""
        gone = replace(
            info, state=State.GONE, reason=death.reason, detail=death.detail, ended_at=death.at, expires_at=None
        )
        kept = self._graves.setdefault(info.id, gone)
        if len(self._graves) > _MOST:
            self._graves.popitem(last=False)
        return kept

    async def find(self, sandbox_id: str) -> SandboxInfo | None:
        """Return what is remembered, or None."""
        return self._graves.get(sandbox_id)
