"""The HTTP client of the service, as a backend."""

from orchard.sandbox.remote.backend import RemoteBackend

__all__ = ["RemoteBackend"]
