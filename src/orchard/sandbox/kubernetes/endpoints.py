"""Where the API server itself is, behind its Service: what policies must deny, and what every Pod reaches without."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import NamedTuple

from orchard.core.errors import InvalidArgument, NotFound, Unauthorized
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.objects import parts
from orchard.sandbox.kubernetes.settings import KubernetesSettings

_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


class ApiEndpoint(NamedTuple):
    """One address of the API server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def api_endpoints(cluster: Cluster, settings: KubernetesSettings) -> list[ApiEndpoint]:
    """Return the endpoints behind ``kubernetes.default``, or those that the settings name.

    Raises:
        Unauthorized: they may not be read, and the settings name none.
        NotFound: the cluster tells of none.
        OrchardError: as ``Cluster.request``.
    """
    if settings.api_servers:
        return [_parse(each) for each in settings.api_servers]
    try:
        slices = await cluster.get(_SLICES, labelSelector="kubernetes.io/service-name=kubernetes")
    except Unauthorized as error:
        raise Unauthorized(
            error.message, reason=error.reason,
            hint="allow `list endpointslices` in the namespace `default`, or name api_servers in the settings",
        ) from error  # fmt: skip
    found = {
        ApiEndpoint(address, port["port"])
        for each in parts(slices, "items")
        for port in parts(each, "ports")
        for endpoint in parts(each, "endpoints")
        for address in endpoint["addresses"]
    }
    if not found:
        raise NotFound("the Service kubernetes.default has no endpoints", hint="name api_servers in the settings")
    return sorted(found)


def _parse(text: str) -> ApiEndpoint:
    host, _, port = text.rpartition(":")
    with suppress(ValueError):
        if port.isdigit():
            return ApiEndpoint(str(ipaddress.ip_address(host.strip("[]"))), int(port))
    raise InvalidArgument(f"api_servers: ADDRESS:PORT is due, not {text!r}", field="api_servers")
