"""Wire dialects: one folder or file each, which only translates, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from orchard.gateway.dialects.anthropic import MESSAGES
from orchard.gateway.dialects.base import Dialect
from orchard.gateway.dialects.chat import CHAT
from orchard.gateway.dialects.models import VERSION_HEADER
from orchard.gateway.dialects.responses import RESPONSES

DIALECTS: Mapping[str, Dialect] = {dialect.path: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
"""By the path of their requests, without ``/v1``."""


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the dialect in which whoever asks for ``path`` reads an error, under whatever prefix."""
    spoken = next((dialect for part, dialect in DIALECTS.items() if f"{part}/" in f"{path}/"), None)
    return spoken or (MESSAGES if VERSION_HEADER in headers else CHAT)
