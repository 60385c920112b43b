"""Contexts for the backends at hand: the local one, a cluster, and a service by its URL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from orchard.core.config import base_env
from orchard.sandbox.backends import open_backend
from orchard.sandbox.conformance.context import Context
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.orchard import Orchard


@asynccontextmanager
async def local(settings: LocalSettings, image: str, images: Mapping[str, str]) -> AsyncGenerator[Context]:
    """Yield a context for the local backend with ``settings``."""
    backend = LocalBackend(settings)
    try:
        async with Orchard(backend=backend) as orchard:
            yield Context(
                orchard, image, lambda: Orchard(backend=backend), images,
                {"ORCHARD_HOME": str(settings.home)}, settings.home,
            )  # fmt: skip
    finally:
        await backend.close()


@asynccontextmanager
async def kubernetes(image: str, images: Mapping[str, str]) -> AsyncGenerator[Context]:
    """Yield a context for the cluster that the environment names, as ``ORCHARD_KUBERNETES`` sets it up."""
    backend = open_backend("kubernetes")
    inherited = base_env()
    names = ("ORCHARD_KUBERNETES", "KUBECONFIG")
    env = {"ORCHARD_BACKEND": "kubernetes"} | {name: inherited[name] for name in names if name in inherited}
    try:
        async with Orchard(backend=backend) as orchard:
            yield Context(orchard, image, lambda: Orchard(backend=backend), images, env)
    finally:
        await backend.close()


@asynccontextmanager
async def service(
    url: str, api_key: str | None, image: str, images: Mapping[str, str], home: Path | None = None
) -> AsyncGenerator[Context]:
    """Yield a context for the service at ``url``; ``home`` is its local backend's folder, if on this machine."""
    backend = open_backend("remote", url=url, api_key=api_key)
    env = {"ORCHARD_URL": url} | ({"ORCHARD_API_KEY": api_key} if api_key else {})
    try:
        async with Orchard(backend=backend) as orchard:
            yield Context(
                orchard, image, lambda: Orchard(url, api_key=api_key),
                images, env, home, url,
            )  # fmt: skip
    finally:
        await backend.close()
