"""The embedded backend: overlay, namespaces and cgroups on one Linux machine, without a daemon."""

from orchard.sandbox.local.backend import LocalBackend
from orchard.sandbox.local.settings import LocalSettings

__all__ = ["LocalBackend", "LocalSettings"]
