"""What the API server's admission says against a Pod: no room for it now, or never."""

from __future__ import annotations

import re
from contextlib import suppress

from orchard.core.errors import CreateFailed, InvalidArgument, OrchardError, QuotaExceeded
from orchard.sandbox.kubernetes.capacity import quantity
from orchard.sandbox.kubernetes.client import Forbidden

# The Status of a full ResourceQuota differs from that of any other refusal by its message alone: code, reason
# (Forbidden) and details (kind and name of the Pod) are the same, and causes it has none. So this is the one form that
# the API server gives it (apiserver/pkg/admission/plugin/resourcequota/controller.go), from end to end; the words of a
# webhook or a policy stand behind a beginning of their own. What has any other form is refused for good, as before.
_EXCEEDED = re.compile(
    r'pods "[^"]+" is forbidden: exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)'
)


def refusal(error: Forbidden | InvalidArgument) -> tuple[OrchardError, bool]:
    """Return what a 400, 403 or 422 to this very Pod means, and whether the same Pod may be taken later on.

    A webhook answers 400 or whatever it likes, a ValidatingAdmissionPolicy 422: neither says anything of the caller.
    """
    match = _EXCEEDED.fullmatch(error.words) if isinstance(error, Forbidden) else None
    if match is None:
        hint = "PodSecurity, a LimitRange or another admission rule of its namespace says so"
        return CreateFailed(f"the cluster refuses the Pod: {error.message}", reason="start_failed", hint=hint), False
    quota, requested, used, limited = match.groups()
    words = f"the ResourceQuota {quota} of the namespace has no room: requested {requested}, used {used} of {limited}"
    full = QuotaExceeded(words, hint="delete some sandboxes, or have the ResourceQuota enlarged")
    return full, _fits(requested, limited)


def _fits(requested: str, limited: str) -> bool:
    """Return False if not even an unused quota would hold what is requested."""
    with suppress(KeyError, ValueError):  # a unit that is not known here: the wait tells
        most = dict(each.split("=") for each in limited.split(","))
        pairs = (each.split("=") for each in requested.split(","))
        return all(quantity(amount) <= quantity(most[name]) for name, amount in pairs)
    return True
