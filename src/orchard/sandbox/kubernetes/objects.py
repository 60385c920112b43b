"""Objects of the API server as plain JSON, in which any part may be absent."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]


def part(thing: Json, *keys: str) -> Json:
    """Return the object at ``keys``, empty where there is none."""
    for key in keys:
        thing = cast("Json", thing.get(key) or {})
    return thing


def parts(thing: Json, *keys: str) -> list[Json]:
    """Return the list of objects at ``keys``, empty where there is none."""
    return cast("list[Json]", part(thing, *keys[:-1]).get(keys[-1]) or [])
