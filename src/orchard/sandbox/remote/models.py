"""The control plane's JSON: one model per body, used by the service to write and by the client to read.

``SandboxInfo`` and ``Page`` stand as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchard.sandbox.types import (
    DEFAULT_CREATE_TIMEOUT,
    DEFAULT_MAX_TTL,
    DEFAULT_PIDS,
    DEFAULT_TTL,
    SandboxSpec,
    parse_size,
)

_MOST_BYTES = 1 << 60
_Size = Annotated[int, Field(gt=0, le=_MOST_BYTES)] | Annotated[str, Field(max_length=24)]


class _Body(BaseModel):
    """Base of request bodies: unknown keys and coercions (``"5"`` for 5) are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SpecBody(_Body):
    """What a sandbox is to be; the fields of ``SandboxSpec``."""

    image: str = Field(examples=["python:3.12"], description="a registry reference, a name or digest in the store")
    cpu: float | None = Field(None, description="CPUs; null: no limit")
    memory: _Size | None = Field(None, description="bytes, or '2GiB'; null: no limit", examples=["2GiB"])
    disk: _Size | None = Field(None, description="bytes of changes, or '10GiB'; null: no limit")
    pids: int = Field(DEFAULT_PIDS, description="most processes and threads at once")
    env: dict[str, str] = Field(default_factory=dict[str, str])
    user: str | None = Field(None, description="name, uid or uid:gid; null: the image's USER")
    workdir: str | None = Field(None, description="null: the image's WORKDIR")
    labels: dict[str, str] = Field(default_factory=dict[str, str], description="Kubernetes label syntax")
    network: str = Field("none", description="'none' or 'open'")
    ttl: float = Field(DEFAULT_TTL, description="seconds until it ends unless extended")
    max_ttl: float = Field(DEFAULT_MAX_TTL, description="seconds beyond which no extension goes")
    idle: float | None = Field(None, description="seconds without activity until it ends; null: no such end")
    heartbeat: float | None = Field(None, description="the owner's window in seconds; null: no owner")
    create_timeout: float = Field(DEFAULT_CREATE_TIMEOUT, description="seconds until ready, not counting the pull")
    entrypoint: bool | list[str] = Field(False, description="run the image's ENTRYPOINT and CMD, or this argv")
    tools: list[str] = Field(default_factory=list[str], description="NAME@sha256:… of folders of programs")

    def to_spec(self) -> SandboxSpec:
        """Return the checked spec.

        Raises:
            InvalidArgument: the first field that is not sane.
        """
        facts: dict[str, Any] = self.model_dump()
        for name in ("memory", "disk"):
            if facts[name] is not None:
                facts[name] = min(parse_size(facts[name], name), _MOST_BYTES)
        return SandboxSpec(**facts).validated()

    @staticmethod
    def of(spec: SandboxSpec) -> SpecBody:
        """Return the body that asks for ``spec``."""
        return SpecBody.model_validate(vars(spec), strict=False)


class PendingBody(BaseModel):
    """Work that goes on; the same request under the same key waits on."""

    status: Literal["creating", "committing", "fetching"]


class CapabilitiesBody(BaseModel):
    """What the backend cannot do: feature -> reason."""

    backend: str
    exceptions: dict[str, str]


class ExtendBody(_Body):
    """A new end: now plus ``ttl`` seconds, never beyond ``max_ttl`` of the sandbox."""

    ttl: float = Field(description="seconds from now", examples=[3600])


class LeaseBody(BaseModel):
    """When the sandbox ends unless something is done; the lease of sandboxd."""

    expires_at: datetime
    ttl_s: float
    max_expires_at: datetime | None = None
    idle_s: float | None = None
    heartbeat_s: float | None = None


class AccessBody(BaseModel):
    """How to reach one sandbox without the service: sandboxd's wire at ``base``, with ``token`` until it expires."""

    base: str = Field(examples=["http://10.0.0.7:8421"])
    token: str
    expires_at: datetime


class CommitBody(_Body):
    """An extra name for the image that is made."""

    name: str = Field(min_length=1, max_length=255, examples=["my-task:prepared"])


class ImageBody(_Body):
    """An image to fetch."""

    image: str = Field(min_length=1, max_length=1024, examples=["python:3.12"])


class DigestBody(BaseModel):
    """The digest of an image, or null where it has none."""

    digest: str | None


class ProblemBody(BaseModel):
    """An error, RFC 9457. ``code`` is the stable word to decide by."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    reason: str | None = None
    hint: str | None = None
    request_id: str | None = None
    field: str | None = None
    errno: str | None = None
    path: str | None = None
    at: str | None = None
