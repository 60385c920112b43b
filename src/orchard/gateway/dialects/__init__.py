"""Wire dialects: one file each, which only translates, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from orchard.gateway.dialects.base import Dialect
from orchard.gateway.dialects.chat import CHAT

DIALECTS: Mapping[str, Dialect] = {dialect.path: dialect for dialect in (CHAT,)}
"""By the path of their requests, without ``/v1``."""


def dialect_of(path: str) -> Dialect:
    """Return the dialect that a path belongs to, under whatever prefix; chat completions for any other."""
    return next((dialect for end, dialect in DIALECTS.items() if path.rstrip("/").endswith(end)), CHAT)
