"""Writing the settings of agent programs as TOML, with values of JSON's kinds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def document(settings: Mapping[str, Any]) -> str:
    """Return ``settings`` as a document, one line each; a key with dots is a path."""
    return "".join(f"{key} = {inline(value)}\n" for key, value in settings.items())


def inline(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{inline(key)} = {inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # texts, numbers and truth values are alike
