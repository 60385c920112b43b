"""The service key: a Secret of the namespace, shared by all replicas, made by whoever comes first and may."""

from __future__ import annotations

import base64
import secrets

from orchard.core.errors import Conflict, InvalidArgument, NotFound
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.identity import ServiceKey
from orchard.sandbox.kubernetes.objects import Json

_FIELD = "key"
_BYTES = 32


async def service_key(cluster: Cluster, name: str) -> ServiceKey:
    """Return the key in the Secret ``name``.

    Raises:
        InvalidArgument: the Secret holds no key of ours.
        NotFound: there is no such namespace.
        Unauthorized: it may not be read, or is absent and may not be made.
    """
    path = cluster.path("secrets", name)
    try:
        secret = await cluster.get(path)
    except NotFound:
        body: Json = {
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "orchard"}},
            "data": {_FIELD: base64.b64encode(secrets.token_bytes(_BYTES)).decode()},
        }  # fmt: skip
        try:
            secret = await cluster.create(cluster.path("secrets"), body)
        except Conflict:  # another replica was first
            secret = await cluster.get(path)
        except NotFound as error:
            hint = f"kubectl create namespace {cluster.namespace}"
            raise NotFound(error.message, reason=error.reason, hint=hint) from error
    try:
        key = base64.b64decode(secret["data"][_FIELD], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"secret {name!r} holds no field {_FIELD!r} in base64", field="key_secret") from error
    if len(key) < _BYTES:
        raise InvalidArgument(f"secret {name!r}: the key has {len(key)} bytes, {_BYTES} are due", field="key_secret")
    return ServiceKey(key)
