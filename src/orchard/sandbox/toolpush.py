"""Bringing a tool layer from this machine's store to a registry, where the nodes of a cluster find it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from orchard.core.config import base_env
from orchard.core.disk import needs_room
from orchard.core.errors import InternalError, InvalidArgument, MachineUnfit, NotFound, Unauthorized, Unavailable
from orchard.core.scratch import scratch
from orchard.sandbox.local.failures import reason_in, said
from orchard.sandbox.local.process import DIE_WITH_US, call
from orchard.sandbox.toolcache import store
from orchard.sandbox.toolnames import Tool, parse_tool
from orchard.sandbox.tools import INSTALL_HINT, find, write_image

_SECONDS = 1800.0


async def push(tool: str, repository: str, *, plain: bool = False) -> str:
    """Push the layer ``tool`` (``NAME@sha256:…``) below ``repository``; return ``REPOSITORY/NAME@sha256:…``.

    It is what the setting ``tools_repository`` of the Kubernetes backend names. The credentials are skopeo's own.

    Args:
        tool: of this machine's store.
        repository: ``HOST/PATH`` of a registry.
        plain: by HTTP, or whatever the registry's certificate.

    Raises:
        NotFound: this machine's store has it not.
        Unauthorized: the registry refuses us.
        Unavailable: it does not answer.
        MachineUnfit: skopeo is missing.
    """
    return await asyncio.to_thread(_push, parse_tool(tool), repository.rstrip("/"), plain)


def _push(tool: Tool, repository: str, plain: bool) -> str:
    host, slash, _ = repository.partition("/")
    if not host or not slash or "@" in repository:
        raise InvalidArgument(f"{repository!r} is no HOST/PATH of a registry", field="repository")
    if shutil.which("skopeo") is None:
        raise MachineUnfit("pushing a tool layer needs skopeo", hint="sudo apt-get install skopeo")
    folder = find(tool)
    if folder is None:
        raise NotFound(f"tool {tool} is not in the tool store of this machine", hint=INSTALL_HINT)
    drafts = store() / ".drafts"
    with needs_room(drafts), scratch(drafts) as draft:
        layout = draft / "layout"
        written = write_image(folder, layout)
        if written != tool.digest:
            raise InternalError(f"the folder of {tool} in the store is not what it was: {folder}")
        _copy(layout, f"{repository}/{tool.name}:{tool.digest.removeprefix('sha256:')}", plain)
    return f"{repository}/{tool}"


def _copy(layout: Path, reference: str, plain: bool) -> None:
    words = ["skopeo", "--insecure-policy", "copy", "--quiet", "--preserve-digests"]
    way = [f"--dest-tls-verify={str(not plain).lower()}", f"oci:{layout}:1", f"docker://{reference}"]
    done = call([*DIE_WITH_US, *words, *way], timeout=_SECONDS, env={**base_env(), "LC_ALL": "C"})
    if done.code:
        text = f"{reference} could not be pushed: {said(done.output)[-500:]}"
        if reason_in(done.output) == "image_auth":
            raise Unauthorized(text, hint="log in with: skopeo login REGISTRY")
        raise Unavailable(text, reason="registry", hint="is it up? --plain-http where it speaks HTTP")
