"""``GET /models`` in the shape of whoever asks: Anthropic's clients say their version in a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchard.core.errors import NotFound

VERSION_HEADER = "anthropic-version"


def models(names: Sequence[str], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of ``GET /models``."""
    data = [_model(name, headers) for name in names]
    if VERSION_HEADER not in headers:
        return {"object": "list", "data": data}
    return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def model(name: str, names: Sequence[str], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of ``GET /models/NAME``.

    Raises:
        NotFound: it is none of ``names``.
    """
    if name not in names:
        raise NotFound(f"no model {name!r} here; there are: {', '.join(names)}")
    return _model(name, headers)


def _model(name: str, headers: Mapping[str, str]) -> dict[str, Any]:
    if VERSION_HEADER in headers:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "orchard"}
