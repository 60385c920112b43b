"""A backend that passes everything on to another one: the base of fault injection and of broken twins."""

from __future__ import annotations

from collections.abc import Mapping

from orchard.sandbox.protocol import Backend, Capabilities
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec


class Wrapped:
    """Passes on; subclasses change one thing."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """The inner backend's name."""
        return self.inner.name

    async def capabilities(self) -> Capabilities:
        """Pass on."""
        return await self.inner.capabilities()

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        """Pass on."""
        return await self.inner.create(spec, key)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Pass on."""
        return await self.inner.get(sandbox_id)

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Pass on."""
        return await self.inner.list(labels, limit=limit, cursor=cursor)

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        """Pass on."""
        await self.inner.delete(sandbox_id, wait=wait)

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Pass on."""
        return await self.inner.endpoint(sandbox_id)

    async def commit(self, sandbox_id: str, name: str) -> str:
        """Pass on."""
        return await self.inner.commit(sandbox_id, name)

    async def resolve_image(self, image: str) -> str | None:
        """Pass on."""
        return await self.inner.resolve_image(image)

    async def close(self) -> None:
        """Leave the inner backend open: it is its maker's to close."""
