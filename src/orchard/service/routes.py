"""The routes of the control plane, as FastAPI shows them in the OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from orchard.core.errors import InvalidArgument
from orchard.sandbox.remote.models import (
    AccessBody,
    CapabilitiesBody,
    CommitBody,
    DigestBody,
    ExtendBody,
    ImageBody,
    LeaseBody,
    PendingBody,
    SpecBody,
)
from orchard.sandbox.types import Page, SandboxInfo, State, check_seconds
from orchard.service import metrics
from orchard.service.control import MOST_WAIT, Control
from orchard.service.keys import Caller
from orchard.service.once import StillRunning

Key = Annotated[
    str | None, Header(alias="Idempotency-Key", description="the same key again has the same answer, and no new effect")
]
Wait = Annotated[
    float | None,
    Query(gt=0, le=3600, description="seconds to wait, then 202: ask again under the same key, it needs one"),
]
PENDING: dict[int | str, dict[str, Any]] = {202: {"model": PendingBody}}
Id = Annotated[str, Path(description="id of a sandbox", examples=["sb-01j9zq3k7h0000000000"])]


T = TypeVar("T")
VERSION = version("orchard-env")


def caller_of(request: Request) -> Caller:
    """Return who asks; the door has looked at the key."""
    return request.scope["state"]["caller"]


Who = Annotated[Caller, Depends(caller_of)]


def parse_labels(labels: list[str]) -> dict[str, str]:
    """Return ``["a=b"]`` as a mapping.

    Raises:
        InvalidArgument: one has no ``=``.
    """
    if bad := [label for label in labels if "=" not in label]:
        raise InvalidArgument(f"label must be NAME=VALUE, not {bad[0]!r}", field="label")
    return dict(label.split("=", 1) for label in labels)


def check_wait(wait: float | None, key: str | None) -> None:
    """Return if it is known under which key to ask again.

    Raises:
        InvalidArgument: it is not.
    """
    if wait is not None and key is None:
        raise InvalidArgument("wait needs an Idempotency-Key, under which to ask again", field="wait")


async def or_pending(
    work: Awaitable[T], response: Response, status: Literal["creating", "committing", "fetching"]
) -> T | PendingBody:
    """Return what ``work`` returns, or 202 while it goes on."""
    try:
        return await work
    except StillRunning:
        response.status_code = 202
        return PendingBody(status=status)


def sandbox_router(control: Control) -> APIRouter:
    """Return the routes of sandboxes."""
    router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])

    @router.post("", status_code=201, responses=PENDING)
    async def create(
        body: SpecBody, who: Who, response: Response, key: Key = None, wait: Wait = None
    ) -> SandboxInfo | PendingBody:
        """Make a sandbox; answers once a command works in it, or with 202 after `wait`: then ask again."""
        check_wait(wait, key)
        return await or_pending(control.create(body.to_spec(), who, key, wait), response, "creating")

    @router.get("")
    async def list_sandboxes(
        who: Who,
        label: Annotated[list[str] | None, Query(description="NAME=VALUE; all must match")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(max_length=256)] = None,
    ) -> Page:
        """List living sandboxes, oldest first, in pages."""
        return await control.list(parse_labels(label or []), who, limit, cursor)

    @router.get("/{sandbox_id}")
    async def get(
        sandbox_id: Id, who: Who,
        wait: Annotated[float, Query(ge=0, le=MOST_WAIT, description="seconds to wait for the state")] = 0,
        state: Annotated[State | None, Query(description="answer once it is in this state, or gone")] = None,
    ) -> SandboxInfo:  # fmt: skip
        """What is known of a sandbox, also after its end."""
        return await control.get(sandbox_id, who, wait, state)

    @router.delete("/{sandbox_id}", status_code=204, response_class=Response)
    async def delete(
        sandbox_id: Id, who: Who, key: Key = None,
        wait: Annotated[bool, Query(description="answer once nothing of it is left")] = True,
    ) -> Response:  # fmt: skip
        """End a sandbox. Deleting twice is fine."""
        await control.delete(sandbox_id, who, wait=wait, key=key)
        return Response(status_code=204)

    _add_actions(router, control)
    return router


def _add_actions(router: APIRouter, control: Control) -> None:
    """Add what is done to one sandbox."""

    @router.post("/{sandbox_id}/extend")
    async def extend_ttl(sandbox_id: Id, body: ExtendBody, who: Who, key: Key = None) -> LeaseBody:
        """Let it end `ttl` seconds from now, sooner or later than before."""
        check_seconds(body.ttl, "ttl")
        return LeaseBody.model_validate(await control.extend(sandbox_id, who, body.ttl, key))

    @router.post("/{sandbox_id}/access")
    async def access(sandbox_id: Id, who: Who, response: Response, key: Key = None) -> AccessBody:
        """Its own address and a short-lived token for it, for clients in its cluster; 501 where there is none."""
        response.headers["cache-control"] = "no-store"
        return await control.access(sandbox_id, who, key)

    @router.post("/{sandbox_id}/commit", status_code=201, responses=PENDING)
    async def commit(
        sandbox_id: Id, body: CommitBody, who: Who, response: Response, key: Key = None, wait: Wait = None
    ) -> DigestBody | PendingBody:
        """Stop it and turn its changes into an image; answers once it is there, or with 202 after `wait`."""
        check_wait(wait, key)
        return await or_pending(control.commit(sandbox_id, body.name, who, key, wait), response, "committing")


def service_router(control: Control, shown: metrics.Metrics) -> APIRouter:
    """Return the routes of the service itself, of images, and of creates under way."""
    router = APIRouter()

    @router.get("/v1/health", tags=["service"])
    @router.get("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        """The service answers. Needs no key."""
        return {"status": "ok", "version": VERSION, "backend": control.backend.name}

    @router.get("/v1/metrics", tags=["service"], response_class=Response)
    @router.get("/metrics", include_in_schema=False, response_class=Response)
    async def scrape() -> Response:
        """Prometheus metrics."""
        return Response(await shown.scrape(), media_type=metrics.CONTENT_TYPE)

    @router.get("/v1/stats", tags=["service"])
    async def stats() -> dict[str, float]:
        """How many sandboxes live here, and since when the service runs (seconds since 1970)."""
        return {"sandboxes": await shown.alive(), "started_at": shown.started}

    @router.get("/v1/capabilities", tags=["service"])
    async def capabilities() -> CapabilitiesBody:
        """What this service's backend cannot do, and why."""
        known = await control.backend.capabilities()
        return CapabilitiesBody(backend=control.backend.name, exceptions=dict(known.exceptions))

    @router.post("/v1/images", tags=["images"], responses=PENDING)
    async def fetch(
        body: ImageBody, who: Who, response: Response, key: Key = None, wait: Wait = None
    ) -> DigestBody | PendingBody:
        """Fetch an image, so that creates need not wait for it; answers with its digest, or with 202 after `wait`."""
        check_wait(wait, key)
        return await or_pending(control.fetch_image(body.image, who, key, wait), response, "fetching")

    @router.delete("/v1/creates/{key}", tags=["sandboxes"], status_code=204, response_class=Response)
    async def undo(key: Annotated[str, Path(description="the Idempotency-Key of a create")], who: Who) -> Response:
        """Give a create up: stop it if it is under way, end its sandbox if it was made."""
        await asyncio.shield(control.undo_create(key, who))
        return Response(status_code=204)

    return router
