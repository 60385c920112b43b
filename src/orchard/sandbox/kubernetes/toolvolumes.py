"""Tool layers of Pods: image volumes, out of a repository in which each layer has the digest that it is asked by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from orchard.core.errors import CreateFailed, Unsupported
from orchard.sandbox.kubernetes.objects import Json, parts
from orchard.sandbox.kubernetes.settings import KubernetesSettings
from orchard.sandbox.toolnames import Tool, parse_tools

NO_REPOSITORY = "tools_repository is not set"
_VOLUME = "tool-"
_PUSH = "push it there: orchard harness install NAME --push REPOSITORY"


def add_tools(body: Json, tools: Sequence[str], settings: KubernetesSettings) -> None:
    """Add ``tools`` to the specification of a Pod, whose first container is the sandbox."""
    for number, tool in enumerate(parse_tools(tools)):
        image = {"reference": _reference(tool, settings), "pullPolicy": "IfNotPresent"}
        body["volumes"].append({"name": f"{_VOLUME}{number}", "image": image})
        mount = {"name": f"{_VOLUME}{number}", "mountPath": tool.mount, "readOnly": True}
        body["containers"][0]["volumeMounts"].append(mount)


def check_tools(tools: Sequence[str], settings: KubernetesSettings) -> None:
    """Return if this backend has a place from which tools come.

    Raises:
        Unsupported: it has none.
    """
    if tools and not settings.tools_repository:
        hint = "name the HOST/PATH that tool layers are pushed to, or put the programs into the image"
        raise Unsupported(f"tools: {NO_REPOSITORY}", hint=hint)


async def find_tools(
    tools: Sequence[str], settings: KubernetesSettings, ask: Callable[[str, str], Awaitable[object]], tenant: str
) -> None:
    """Return if the repository has ``tools``, as far as ``ask`` can tell.

    Raises:
        CreateFailed: tool_not_found: it has one not.
    """
    for tool in parse_tools(tools):
        try:
            await ask(_reference(tool, settings), tenant)
        except CreateFailed as error:
            if error.reason != "image_not_found":
                raise
            text = f"tool {tool} is not in {settings.tools_repository}"
            raise CreateFailed(text, reason="tool_not_found", hint=_PUSH) from error


def check_kept(pod: Json, tools: Sequence[str]) -> None:
    """Return if the API server has kept the image volumes of ``tools``; one without them drops them in silence.

    Raises:
        Unsupported: it has not.
    """
    kept = sum("image" in each and each["name"].startswith(_VOLUME) for each in parts(pod, "spec", "volumes"))
    if kept < len(tools):
        hint = "Kubernetes 1.35 has them, 1.33 with the feature gate ImageVolume; or put the programs into the image"
        raise Unsupported("tools: this cluster has no image volumes", hint=hint)


def _reference(tool: Tool, settings: KubernetesSettings) -> str:
    return f"{settings.tools_repository.rstrip('/')}/{tool}"
