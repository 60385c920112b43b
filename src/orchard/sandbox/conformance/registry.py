"""A read-only image registry on loopback that is slow, or wants a password. For the pull checks only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """Serves one OCI layout as ``library/probe:1``; see the distribution specification, "pull".

    Args:
        layout: folder of an OCI image layout, or None for a registry without images.
        delay: seconds before each blob.
        private: answer 401 to everything.
    """

    def __init__(self, layout: Path | None, *, delay: float = 0.0, private: bool = False) -> None:
        self._layout, self._delay, self._private = layout, delay, private

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if self._private:
            header = {"WWW-Authenticate": 'Basic realm="private"'}
            return self._error(401, "UNAUTHORIZED", "authentication required", header)
        path = request.path
        if path.rstrip("/") == "/v2":
            return web.json_response({})
        if self._layout is None or not path.startswith("/v2/library/probe/"):
            return self._error(404, "NAME_UNKNOWN", "repository name not known to registry")
        kind, _, reference = path.removeprefix("/v2/library/probe/").partition("/")
        if kind == "manifests":
            return self._manifest(reference)
        await asyncio.sleep(self._delay)
        blob = self._layout / "blobs" / reference.replace(":", "/")
        return web.FileResponse(blob) if blob.is_file() else self._error(404, "BLOB_UNKNOWN", "blob unknown")

    def _manifest(self, reference: str) -> web.StreamResponse:
        assert self._layout is not None
        index: dict[str, Any] = json.loads((self._layout / "index.json").read_text())
        digest = index["manifests"][0]["digest"]
        if reference not in ("1", digest):
            return self._error(404, "MANIFEST_UNKNOWN", "manifest unknown")
        body = (self._layout / "blobs" / digest.replace(":", "/")).read_bytes()
        return web.Response(body=body, content_type=MANIFEST, headers={"Docker-Content-Digest": digest})

    @staticmethod
    def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
        return web.json_response({"errors": [{"code": code, "message": message}]}, status=status, headers=headers)


@asynccontextmanager
async def serve(registry: Registry) -> AsyncGenerator[str]:
    """Serve on a free loopback port; yield ``127.0.0.1:PORT``."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", registry.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
