"""What the backend asks of the API server: the rights that a service account needs, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.policies import EVERY, OPEN
from orchard.sandbox.kubernetes.settings import KubernetesSettings

_NET = "networking.k8s.io"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Right:
    """One verb on one kind of object."""

    verb: str
    resource: str
    group: str = ""
    namespace: str | None = None
    """None: of the whole cluster."""
    name: str | None = None
    """Of the one object; None: of any."""
    required: bool = True
    """Without it no sandbox can be made."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {kind}{f'/{self.name}' if self.name else ''}{where}"


def rights(namespace: str, settings: KubernetesSettings) -> list[Right]:
    """Return every right that the backend makes use of with sandboxes in ``namespace``."""
    found = [Right(verb, "pods", namespace=namespace) for verb in ("create", "delete", "get", "list", "watch")]
    found.append(Right("get", "secrets", namespace=namespace, name=settings.key_secret))
    found += [Right(verb, "events", namespace=namespace, required=False) for verb in ("create", "get", "list", "watch")]
    logins = dict.fromkeys((*settings.pull_secrets, *settings.push_secrets))
    found += [Right("get", "secrets", namespace=namespace, name=name, required=False) for name in logins]
    found.append(Right("create", "networkpolicies", _NET, namespace))
    found += [Right("patch", "networkpolicies", _NET, namespace, name) for name in (EVERY, OPEN)]
    if not settings.api_servers:
        found.append(Right("list", "endpointslices", "discovery.k8s.io", "default"))
    found.append(Right("list", "nodes", required=False))
    found.append(Right("list", "servicecidrs", _NET, required=False))
    return found


def reaper_rights(namespace: str, settings: KubernetesSettings) -> list[Right]:
    """Return every right that ``orchard reap`` makes use of with sandboxes in ``namespace``."""
    found = [Right(verb, "pods", namespace=namespace) for verb in ("delete", "list")]
    found += [Right(verb, "events", namespace=namespace, required=False) for verb in ("create", "get")]
    return [*found, Right("get", "secrets", namespace=namespace, name=settings.key_secret)]


async def lacking(cluster: Cluster, wanted: Sequence[Right]) -> list[Right]:
    """Return those of ``wanted`` that the API server would refuse us."""
    return [right for right in wanted if not await _may(cluster, right)]


async def _may(cluster: Cluster, right: Right) -> bool:
    asked = {"verb": right.verb, "resource": right.resource, "group": right.group}
    asked |= {"namespace": right.namespace or ""} | ({"name": right.name} if right.name else {})
    body: Json = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }  # fmt: skip
    return bool(part(await cluster.create(_REVIEWS, body), "status").get("allowed"))
