"""Identifiers: sortable by time, safe in URLs, Kubernetes names and file names."""

from __future__ import annotations

import re
import secrets
import time

from orchard.core.errors import InvalidArgument

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9._-]{1,128}")


def new_id(prefix: str) -> str:
    """Return ``prefix-`` and 20 characters: 9 of the time in milliseconds, 11 (55 bits) random."""
    stamp = int(time.time() * 1000)
    head = "".join(_ALPHABET[(stamp >> shift) & 31] for shift in range(40, -1, -5))
    bits = secrets.randbits(55)
    tail = "".join(_ALPHABET[(bits >> shift) & 31] for shift in range(50, -1, -5))
    return f"{prefix}-{head}{tail}"


def check_id(value: str, field: str) -> str:
    """Return ``value`` if it is a DNS label (so ``../x`` never is one).

    Raises:
        InvalidArgument: it is not; ``field`` names it.
    """
    if not _ID.fullmatch(value):
        raise InvalidArgument(f"{field} must be 1-63 of a-z, 0-9 and '-', not {value!r}", field=field)
    return value


def check_key(value: str, field: str) -> str:
    """Return ``value`` if it may serve as an idempotency key or operation id.

    Raises:
        InvalidArgument: it is not 1-128 of ``[A-Za-z0-9._-]``.
    """
    if not _KEY.fullmatch(value):
        raise InvalidArgument(f"{field} must be 1-128 of A-Z a-z 0-9 . _ -, not {value!r}", field=field)
    return value
