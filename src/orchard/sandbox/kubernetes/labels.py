"""Labels of callers on Pods, under a prefix of ours, so that no selector of others ever matches them."""

from __future__ import annotations

from collections.abc import Mapping

from orchard.core.errors import InvalidArgument

SANDBOX = "orchard/sandbox"
"""``1`` on every Pod of ours."""
NETWORK = "orchard/network"
SERVICE = "orchard/service"
CLIENT = "orchard/client"
"""``1`` on Pods of the service, and on those that may speak with sandboxes directly."""
TENANT = "orchard/tenant"
"""Also the caller's label by which the service says whose it is."""
_OURS = "label.orchard"
_LONGEST_PREFIX = 253


def to_pod(labels: Mapping[str, str]) -> dict[str, str]:
    """Return ``NAME`` as ``label.orchard/NAME`` and ``a.b/c`` as ``a.b.label.orchard/c``.

    Raises:
        InvalidArgument: a prefix leaves no room for ours.
    """
    found: dict[str, str] = {}
    for key, value in labels.items():
        prefix, _, name = key.rpartition("/")
        full = f"{prefix}.{_OURS}" if prefix else _OURS
        if len(full) > _LONGEST_PREFIX:
            most = _LONGEST_PREFIX - len(_OURS) - 1
            raise InvalidArgument(f"label key {key!r}: a prefix has at most {most} characters here", field="labels")
        found[f"{full}/{name}"] = value
    return found


def from_pod(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's labels out of a Pod's."""
    found: dict[str, str] = {}
    for key, value in labels.items():
        prefix, _, name = key.rpartition("/")
        if prefix == _OURS:
            found[name] = value
        elif prefix.endswith(f".{_OURS}"):
            found[f"{prefix.removesuffix(f'.{_OURS}')}/{name}"] = value
    return found
