"""Who is who: names of Pods, ids, tokens, and the proof that a Pod is ours.

The name follows from tenant and key, so that a second create under the same key meets the first one's Pod. The id is
the name with a part of its own for each Pod, so that a Pod made anew under an old key is never taken for the old one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from orchard.sandbox.kubernetes.objects import Json, part

ID = "orchard/id"
MAC = "orchard/mac"
_NAME_LETTERS = 26  # 130 bits
_NONCE_BYTES = 5  # 8 letters


def pod_name(tenant: str, key: str) -> str:
    """Return the one name of the Pod of ``tenant`` under ``key``."""
    digest = hashlib.sha256(f"{tenant}\0{key}".encode()).digest()
    return "sb-" + _letters(digest)[:_NAME_LETTERS]


def new_sandbox_id(name: str) -> str:
    """Return an id for a Pod ``name`` that is about to be made."""
    return f"{name}-{_letters(secrets.token_bytes(_NONCE_BYTES))}"


def name_of(sandbox_id: str) -> str:
    """Return the name of the Pod of a sandbox; of a text that is no id of ours, a name that no Pod of ours has."""
    return sandbox_id.rpartition("-")[0] or sandbox_id


@dataclass(frozen=True)
class Identity:
    """What the proof on a Pod is over."""

    namespace: str
    name: str
    id: str
    tenant: str


class ServiceKey:
    """The key that all replicas share. Never shown."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, sandbox_id: str) -> str:
        """Return the bearer token of a sandbox."""
        return self._sign("token", sandbox_id)

    def token_sha256(self, sandbox_id: str) -> str:
        """Return what sandboxd is given of it."""
        return hashlib.sha256(self.token(sandbox_id).encode()).hexdigest()

    def commit_token(self, sandbox_id: str) -> str:
        """Return the token by which the service alone speaks with a sandbox while it is committed."""
        return self._sign("commit", sandbox_id)

    def mac(self, who: Identity) -> str:
        """Return the proof that goes on the Pod."""
        return self._sign("pod", who.namespace, who.name, who.id, who.tenant)

    def owner(self, pod: Json, tenant_label: str) -> Identity | None:
        """Return whose the Pod is, or None: it carries no proof of ours, so it is neither shown nor touched."""
        metadata = part(pod, "metadata")
        notes, labels = part(metadata, "annotations"), part(metadata, "labels")
        who = Identity(metadata["namespace"], metadata["name"], notes.get(ID, ""), labels.get(tenant_label, ""))
        proven = hmac.compare_digest(notes.get(MAC, "").encode(), self.mac(who).encode())
        return who if proven and name_of(who.id) == who.name else None

    def tombstone(self, namespace: str, sandbox_id: str, record: str) -> str:
        """Return the proof that goes on what is remembered of a sandbox."""
        return self._sign("tombstone", namespace, sandbox_id, record)

    def proves(self, proof: str, namespace: str, sandbox_id: str, record: str) -> bool:
        """Return True if the record of a sandbox's end is ours."""
        return hmac.compare_digest(proof.encode(), self.tombstone(namespace, sandbox_id, record).encode())

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def _letters(data: bytes) -> str:
    return base64.b32encode(data).decode().lower().rstrip("=")
