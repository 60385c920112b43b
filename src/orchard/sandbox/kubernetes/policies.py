"""Who may speak with whom: two NetworkPolicies of constant names, whatever the number of sandboxes.

``orchard-sandboxes`` holds for every sandbox: in comes the port of sandboxd, and only from the service, its clients and
the ranges named; out goes nothing, look-ups of names neither. ``orchard-network-open`` adds, for those with
``network="open"``, the world without what is inside: private, shared, link-local (so the metadata service) and special
ranges, and of the cluster the ranges of its Pods and Services, the addresses of its nodes and of its API server,
whatever range they are in. Policies see addresses after a Service's translation, so it is endpoints that count.

Names: an open sandbox asks the cluster's DNS Pods (or the resolvers that the settings name) on port 53, and nothing
else of the cluster. They tell it the names of Services too, none of which it reaches.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from orchard.core.errors import InvalidArgument, NotFound, OrchardError, Unauthorized, text_of
from orchard.sandbox.kubernetes import labels
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.endpoints import api_endpoints
from orchard.sandbox.kubernetes.fresh import Fresh
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import PORT
from orchard.sandbox.kubernetes.settings import KubernetesSettings

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

GROUP = "networking.k8s.io/v1"
EVERY = "orchard-sandboxes"
OPEN = "orchard-network-open"
_REFRESH = 300.0  # seconds until nodes that came since are excepted
_LOOK_EVERY = 30.0  # seconds
_DNS_PORT = 53
_DNS_PODS = {"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"}
_NAT64 = int(ipaddress.IPv6Address("64:ff9b::"))

_INSIDE_4 = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
)  # fmt: skip
_INSIDE_6 = (
    "::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2002::/16", "fc00::/7", "fe80::/10",
    "fec0::/10", "ff00::/8",
)  # fmt: skip
"""Also what leads to IPv4 by another way: compatible, local NAT64, Teredo, 6to4. (Mapped addresses leave as IPv4.)"""

_log = logging.getLogger(__name__)


def network_policies(namespace: str, settings: KubernetesSettings, inside: Iterable[Network] = ()) -> list[Json]:
    """Return the policies for the sandboxes of ``namespace``.

    Args:
        namespace: where the sandboxes are.
        settings: who may come in, and how open sandboxes resolve names.
        inside: what of the cluster an open sandbox must not reach beside the private ranges; see ``find_inside``.

    Raises:
        InvalidArgument: an address or range of the settings is none.
    """
    every: Json = {
        "podSelector": {"matchLabels": {labels.SANDBOX: "1"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": _callers(namespace, settings), "ports": [{"protocol": "TCP", "port": PORT}]}],
    }
    outer: Json = {
        "podSelector": {"matchLabels": {labels.SANDBOX: "1", labels.NETWORK: "open"}},
        "policyTypes": ["Egress"],
        "egress": [{"to": _world([*inside, *_ranges(settings.egress.excepted, "egress.excepted")])}, _names(settings)],
    }
    return [_policy(namespace, EVERY, every), _policy(namespace, OPEN, outer)]


def _policy(namespace: str, name: str, spec: Json) -> Json:
    about = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "orchard"}}
    return {"apiVersion": GROUP, "kind": "NetworkPolicy", "metadata": about, "spec": spec}


def _callers(namespace: str, settings: KubernetesSettings) -> list[Json]:
    places = dict.fromkeys([namespace, *settings.ingress.namespaces])
    pods: list[Json] = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}},
            "podSelector": {"matchLabels": {kind: "1"}},
        }
        for place in places
        for kind in (labels.SERVICE, labels.CLIENT)
    ]
    return pods + [{"ipBlock": {"cidr": str(each)}} for each in _ranges(settings.ingress.cidrs, "ingress.cidrs")]


def _world(inside: Sequence[Network]) -> list[Json]:
    fours = [ipaddress.IPv4Network(each) for each in _INSIDE_4] + [each for each in inside if each.version == 4]
    sixes = [ipaddress.IPv6Network(each) for each in _INSIDE_6] + [each for each in inside if each.version == 6]
    sixes += [ipaddress.IPv6Network((_NAT64 | int(each.network_address), 96 + each.prefixlen)) for each in fours]
    return [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": [str(each) for each in ipaddress.collapse_addresses(fours)]}},
        {"ipBlock": {"cidr": "::/0", "except": [str(each) for each in ipaddress.collapse_addresses(sixes)]}},
    ]


def _names(settings: KubernetesSettings) -> Json:
    namespace, pods = _DNS_PODS
    cluster: list[Json] = [{"namespaceSelector": {"matchLabels": namespace}, "podSelector": {"matchLabels": pods}}]
    own: list[Json] = [
        {"ipBlock": {"cidr": str(each)}} for each in _ranges(settings.egress.resolvers, "egress.resolvers")
    ]
    return {"to": own or cluster, "ports": [{"protocol": kind, "port": _DNS_PORT} for kind in ("UDP", "TCP")]}


def _ranges(texts: Iterable[str], field: str) -> list[Network]:
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise InvalidArgument(str(error), field=field) from error


async def find_inside(cluster: Cluster, settings: KubernetesSettings) -> list[Network]:
    """Ask the cluster for the addresses of its nodes and API server, and for the ranges of its Pods and Services.

    What may not be read is left out with a warning; ``egress.excepted`` can name it.
    """
    texts = [ipaddress.ip_address(each.host).exploded for each in await api_endpoints(cluster, settings)]
    try:
        async for page in cluster.pages("/api/v1/nodes"):
            for node in page["items"]:
                texts += part(node, "spec").get("podCIDRs") or []
                texts += [each["address"] for each in parts(node, "status", "addresses") if _is_ip(each)]
        texts += await _service_ranges(cluster)
    except Unauthorized as error:
        _log.warning("nodes and ranges of the cluster are not excepted from open networks by address: %s", error)
    return [ipaddress.ip_network(text, strict=False) for text in texts]  # a node's range may hold host bits


def _is_ip(address: Json) -> bool:
    return address["type"] in ("InternalIP", "ExternalIP")


async def _service_ranges(cluster: Cluster) -> list[str]:
    try:
        found = await cluster.get(f"/apis/{GROUP}/servicecidrs")
    except NotFound:  # before Kubernetes 1.33; nothing is sent to such an address in the end
        return []
    return [text for each in found["items"] for text in each["spec"]["cidrs"]]


class Policies:
    """Keeps the policies of one namespace up to date, for one process; any number of processes may."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self._stand = False
        self._fresh = Fresh(self._renew, _REFRESH)

    async def hold(self) -> None:
        """Return once they hold, and bring them up to date every few minutes: nodes come and go.

        Raises:
            Unauthorized: we may not.
            OrchardError: as ``Cluster.request``, the first time; later ones are tried again, and what stands holds.
        """
        await self._fresh.get()

    async def keep(self, cache: PodCache) -> None:
        """Do so for as long as there are sandboxes, whether or not more of them are made, until cancelled."""
        await cache.synced()
        while True:
            if next(cache.pods(), None) is not None:
                try:
                    await self.hold()
                except Exception as error:  # noqa: BLE001 - the seam to the cluster's words: what runs beside goes on
                    odd = not isinstance(error, OrchardError)
                    _log.warning("network policies are brought up to date later: %s", text_of(error), exc_info=odd)
                    await asyncio.sleep(_REFRESH)
            await asyncio.sleep(_LOOK_EVERY * random.uniform(0.5, 1.5))  # replicas keep out of step

    async def _renew(self) -> None:
        try:
            await self._apply()
        except OrchardError as error:
            if not self._stand:
                raise
            _log.warning("the network policies were not brought up to date: %s", error)
        self._stand = True

    async def _apply(self) -> None:
        inside = await find_inside(self._cluster, self._settings)
        for policy in network_policies(self._cluster.namespace, self._settings, inside):
            path = self._cluster.path("networkpolicies", policy["metadata"]["name"], group=GROUP)
            await self._cluster.apply(path, policy)
