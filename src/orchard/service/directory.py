"""Whose a sandbox is and how it is reached, remembered so that the hot path asks no backend."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from orchard.core.errors import NotFound
from orchard.core.ids import check_id
from orchard.sandbox.protocol import Backend
from orchard.sandbox.types import Endpoint, SandboxInfo
from orchard.service.keys import TENANT_LABEL, Caller

_MOST = 20_000  # entries kept
_FRESH = 300.0  # seconds after which an entry is looked up again


@dataclass(frozen=True)
class Entry:
    """One sandbox as the data path needs it."""

    id: str
    tenant: str
    endpoint: Endpoint
    at: float

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The identity headers for sandboxd, as bytes."""
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.endpoint.headers.items()]


class Directory:
    """Looks sandboxes up. An entry is dropped when its endpoint fails or the sandbox is deleted."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    async def find(self, sandbox_id: str, caller: Caller) -> Entry:
        """Return the entry of a living sandbox of the caller's tenant.

        Raises:
            InvalidArgument: not an id.
            NotFound: no such sandbox, or another tenant's.
            SandboxGone: it has ended.
        """
        entry = self._entries.get(sandbox_id)
        if entry is None or time.monotonic() - entry.at > _FRESH:
            entry = await self._look_up(sandbox_id, caller)
        if entry.tenant != caller.tenant:
            raise unknown(sandbox_id)
        return entry

    async def _look_up(self, sandbox_id: str, caller: Caller) -> Entry:
        info = await self.info(sandbox_id, caller)  # first, so that a stranger does not learn that it is gone
        endpoint = await self._backend.endpoint(sandbox_id)
        entry = Entry(sandbox_id, tenant_of(info), endpoint, time.monotonic())
        self._entries[sandbox_id] = entry
        if len(self._entries) > _MOST:
            self._entries.popitem(last=False)
        return entry

    async def info(self, sandbox_id: str, caller: Caller) -> SandboxInfo:
        """Return what the backend knows, alive or gone.

        Raises:
            InvalidArgument: not an id.
            NotFound: no such sandbox, or another tenant's.
        """
        try:
            info = await self._backend.get(check_id(sandbox_id, "sandbox id"))
        except NotFound:
            raise unknown(sandbox_id) from None
        if tenant_of(info) != caller.tenant:
            raise unknown(sandbox_id)
        return info

    def forget(self, sandbox_id: str) -> Entry | None:
        """Drop the entry, so that the next request looks it up anew; return it if there was one."""
        return self._entries.pop(sandbox_id, None)


def tenant_of(info: SandboxInfo) -> str:
    """Return whose it is; a sandbox without the reserved label (made beside the service) is nobody's here."""
    return info.labels.get(TENANT_LABEL, "")


def unknown(sandbox_id: str) -> NotFound:
    """Return the one answer for what does not exist and for what is another's."""
    return NotFound(f"no sandbox {sandbox_id}", hint="`orchard sandbox ls` shows those of your key")
