"""Puts the service together: the control plane (FastAPI, with its OpenAPI document) and the data path in front."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.routing import Match

from orchard.core.errors import InternalError, InvalidArgument, NotFound, OrchardError
from orchard.core.validation import first_fault
from orchard.sandbox.protocol import Backend
from orchard.sandbox.remote.models import ProblemBody
from orchard.service.control import Control
from orchard.service.datapath import DataPath
from orchard.service.directory import Directory
from orchard.service.front import OPEN_PATHS, Front
from orchard.service.images import ImageRules
from orchard.service.keys import KeyRing
from orchard.service.metrics import Metrics
from orchard.service.options import ServiceOptions
from orchard.service.portproxy import PortProxy
from orchard.service.problems import behind_the_door, problem
from orchard.service.relay import Relay
from orchard.service.routes import VERSION, sandbox_router, service_router
from orchard.service.tunnels import Tunnels
from orchard.service.wireroutes import problem_response, wire_paths

_SWEEP_EVERY = 30.0
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_CREATE_GRACE = 5.0  # seconds that creates under way have when the service stops; a client's retry makes them anew


class Service:
    """One service over one backend. ``app`` is its ASGI application; ``stopping`` is called when the server stops."""

    def __init__(self, backend: Backend, options: ServiceOptions) -> None:
        self._backend = backend
        self._relay, directory, self._metrics = Relay(), Directory(backend), Metrics(backend)
        self._datapath = DataPath(backend, directory, self._relay)
        tunnels = Tunnels(self._datapath)
        keys = KeyRing(options.keys_path) if options.keys_path else None
        images = ImageRules(options, keys)
        self._control = Control(backend, directory, self._datapath, self._metrics, images)
        rooms = (self._datapath, tunnels, PortProxy(tunnels, self._relay))
        self.app = Front(_control_plane(self._control, self._metrics), keys, rooms, self._live)
        self.app.on_answer = self._metrics.answered

    def stopping(self) -> None:
        """End the streams that would go on for ever. Sandboxes live on."""
        self._relay.close()

    @contextlib.asynccontextmanager
    async def _live(self) -> AsyncGenerator[None]:
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.wait([sweeper])
            await self._control.close(_CREATE_GRACE)
            self._datapath.pool.close()
            await self._backend.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            self._datapath.pool.sweep()


def _control_plane(control: Control, shown: Metrics) -> FastAPI:
    app = FastAPI(
        title="Orchard", version=VERSION, redoc_url=None, docs_url=None,
        description="Creates, drives and destroys sandboxes. Send the key as `Authorization: Bearer KEY`.",
        responses={"default": problem_response()},
    )  # fmt: skip
    app.include_router(sandbox_router(control))
    app.include_router(service_router(control, shown))
    app.add_exception_handler(OrchardError, _orchard_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _fault)
    app.openapi = lambda: _openapi(app)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        schemas["ProblemBody"] = ProblemBody.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        document["paths"].update(wire_paths())
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if path not in OPEN_PATHS:
                    operation["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _answer(request: Request, error: OrchardError) -> Response:
    status, headers, body = problem(error, request.scope["state"]["request_id"])
    plain = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, plain)


async def _orchard_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OrchardError)
    return _answer(request, behind_the_door(error, request.scope["state"]["request_id"]))


async def _validation_error(request: Request, error: Exception) -> Response:
    """The first thing that is wrong, with its field. The value itself is not repeated: it may be a secret."""
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    first = faults[0]
    where = [str(part) for part in first["loc"][1:] if isinstance(part, str)]
    field = where[0] if where and first["type"] != "json_invalid" else str(first["loc"][0])
    return _answer(request, InvalidArgument(f"{field}: {first_fault(faults)[1]}", field=field))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        return _answer(request, NotFound(f"no route {what}", hint="see /openapi.json"))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        answer = _answer(request, _NoMethod(f"no such method: {what}", reason="method", hint="see /openapi.json"))
        answer.headers["allow"] = ", ".join(_methods(request))
        return answer
    return _answer(request, InvalidArgument(str(error.detail)))


class _NoMethod(InvalidArgument):
    """The route has no such method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED.value


def _methods(request: Request) -> list[str]:
    """Return the methods that some route has for the request's path; each route knows its own only."""
    scopes = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"] for scope in scopes
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]  # fmt: skip


async def _fault(request: Request, error: Exception) -> Response:
    """Answers; Starlette then raises the exception on, and the door logs it."""
    request_id = request.scope["state"]["request_id"]
    return _answer(request, InternalError("a fault of the service", hint=f"its log says more under {request_id}"))
