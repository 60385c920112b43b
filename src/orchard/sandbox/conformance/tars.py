"""Archives that try to write outside the folder they are unpacked in."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from orchard.core.errors import OrchardError
from orchard.sandbox.transport import Transport
from orchard.sandbox.tree import download
from orchard.sandbox.types import Endpoint


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _file(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), b"evil"


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def hostile_tars(outside: str) -> Iterator[tuple[str, bytes]]:
    """Yield (kind, archive); each would make a file called ``evil…`` in ``outside`` if unpacked carelessly."""
    yield "parent", _tar(_file("../evil"))
    yield "deep-parent", _tar(_file("a/../../evil-deep"))
    yield "absolute", _tar(_file(f"{outside}/evil-absolute"))
    yield "through-symlink", _tar(_link("s", ".."), _file("s/evil-through"))
    yield "through-absolute-symlink", _tar(_link("s", outside), _file("s/evil-absolute-link"))
    yield "chained-symlinks", _tar(_link("a", "."), _link("a/b", ".."), _file("a/b/evil-chained"))
    yield "hard-link-out", _tar(_link("h", "../evil-target", tarfile.LNKTYPE), _file("h"))
    yield "symlink-over-folder", _tar(_file("d/x"), _link("d", ".."), _file("d/evil-over"))


async def receive(archive: bytes, target: Path) -> None:
    """Download a folder from a daemon that has been taken over and sends ``archive``; typed errors are fine."""
    identity = {"Orchard-Sandbox": "sb-hostile"}
    entry = {"path": "/x", "name": "x", "type": "dir", "size": 0, "mode": 0o755, "mtime": 0, "uid": 0, "gid": 0}

    async def answer(request: web.Request) -> web.Response:
        body = {"/v1/tree": archive, "/v1/files/stat": json.dumps(entry).encode()}
        return web.Response(body=body.get(request.path, b'{"end":true,"count":0}\n'), headers=identity)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint = Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}", "/v1", identity, "sb-hostile")
        transport = Transport(endpoint)
        try:
            await download(transport, "/x", target)
        except OrchardError:
            return
        finally:
            await transport.close()
    finally:
        await runner.cleanup()
